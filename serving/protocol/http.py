"""The ASGI application: answers inference and metrics, and hands the rest to KServe's own."""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial

import orjson
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kfp_pytorch.serving import metrics
from kfp_pytorch.serving.errors import RETRY, BadRequest, NotFound, Overloaded, refusal
from kfp_pytorch.serving.protocol import v1, v2
from kfp_pytorch.serving.protocol.query import size_of
from kfp_pytorch.serving.service import Service

# How long a client waits, in milliseconds; the second is Envoy's own.
TIMEOUTS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
JSON = "application/json"
_LONGEST_TIMEOUT_MS = 3_600_000
_INFERENCE = re.compile(
    r"/v1/models/(?P<v1>[^/]+):predict|/v1/models/(?P<explain>[^/]+):explain"
    r"|/v2/models/(?P<v2>[^/]+)(/versions/[^/]+)?/infer"
)
_NOT_SERVED = re.compile(r"/v2/repository/.*", re.DOTALL)
_CLOSE = {"connection": "close"}
# Answers that are sent before the body was read; the rest of it makes the connection useless.
_UNREAD = _CLOSE


class ClientGone(Exception):
    """The client closed the connection within its request."""


class Http:
    """Answers inference in both versions of the protocol; `rest` answers everything else."""

    def __init__(self, service: Service, rest: ASGIApp, drain_seconds: float) -> None:
        self._service = service
        self._rest = rest
        self._drain_seconds = drain_seconds
        # The other connections are kept for what has no body, such as probes.
        self._most_at_once = service.settings.max_connections * 7 // 8
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event of ASGI."""
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        began, protocol, name = time.perf_counter(), "", ""
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        # A client that leaves this connection finds a predictor that stays.
        reply = Reply(send, _CLOSE if self._service.stopping else {})
        body = Body(self._service, receive)
        self._at_once += 1
        try:
            body.check(headers)
            matched = _INFERENCE.fullmatch(scope["path"]) if scope["method"] == "POST" else None
            if matched and not (matched["v1"] and _is_event(headers)):
                ((protocol, name),) = ((k, v) for k, v in matched.groupdict().items() if v)
            if scope["method"] == "POST" and self._at_once > self._most_at_once:
                why = f"{self._most_at_once} requests are being answered; try again later"
                raise HTTPException(503, why, _UNREAD | RETRY)
            if protocol:
                await self._infer(protocol, name, headers, body, reply)
            else:
                await self._other(scope, headers, body, reply)
        except ClientGone:
            return
        except asyncio.CancelledError:
            # uvicorn cancels what is not answered when draining ends.
            why = f"the predictor is stopping, and {self._drain_seconds:g} s were too short"
            await reply.refuse(503, f"{why}; try again", _UNREAD | RETRY)
        except HTTPException as error:
            await reply.refuse(error.status_code, error.detail, dict(error.headers or {}))
        except Exception as error:
            told = refusal(error)
            await reply.refuse(told.status, told.reason, RETRY if told.status == 503 else {})
        finally:
            self._at_once -= 1
            body.release()
            if protocol:
                # As nginx counts a client that did not wait for its answer.
                status = str(reply.status or 499)
                self._service.recorder.request(protocol, status, time.perf_counter() - began)

    async def _infer(
        self, protocol: str, name: str, headers: dict[str, str], body: Body, reply: Reply
    ) -> None:
        service, export = self._service, self._service.export
        service.check_name(name)
        deadline = service.deadline(_timeout(headers))
        content = await body.read(deadline)
        size = len(content)
        if protocol == "v2":
            read = partial(v2.read, content, headers, export)
            query, answers = await service.answer(size, read, deadline)
            write = partial(v2.write, answers, export, query, name)
            await reply.send(*await service.off_loop(size_of(answers, query), write))
            return
        found = headers.get("content-type", "none")
        if found.partition(";")[0].strip().lower() != JSON:
            raise BadRequest(f"content-type: must be {JSON}, not {found}")
        if protocol == "explain":
            wanted = partial(v1.read_wish, content, export)
            explanations = await service.explain(size, wanted, deadline)
            written = v1.write_explanations(explanations, export)
        else:
            query, answers = await service.answer(size, partial(v1.read, content, export), deadline)
            write_v1 = partial(v1.write, answers, export, query)
            written = await service.off_loop(size_of(answers, query), write_v1)
        await reply.send(written, {"content-type": JSON})

    async def _other(self, scope: Scope, headers: dict[str, str], body: Body, reply: Reply) -> None:
        path = scope["path"]
        if path == "/metrics":
            content, content_type = metrics.page(headers.get("accept", ""))
            await reply.send(content, {"content-type": content_type})
            return
        if _NOT_SERVED.fullmatch(path):
            raise NotFound("this server loads no models, but at its start")
        await self._rest(scope, body.receive, reply.pass_on)


class Body:
    """Reads the body of a request within the limits. They are raised as HTTPException."""

    def __init__(self, service: Service, receive: Receive) -> None:
        self._service = service
        self._receive = receive
        self._limit = service.settings.max_body
        self._held = 0

    def check(self, headers: dict[str, str]) -> None:
        """Refuses by its headers what is too large or cannot be read."""
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding != "identity":
            why = f"content-encoding: {coding!r:.40} is not read; send the body as it is"
            raise HTTPException(415, why, _UNREAD | {"accept-encoding": "identity"})
        if int(headers.get("content-length", 0)) > self._limit:
            raise self._too_large(_UNREAD)

    async def read(self, deadline: float) -> bytes:
        """The whole body. Raises HTTPException: it did not come in time."""
        chunks = []
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    chunks.append(message.get("body", b""))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            why = "body: it did not come before the request's deadline"
            raise HTTPException(408, why, _UNREAD) from None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def receive(self) -> Message:
        """The next message of ASGI. Raises HTTPException: the bodies are too large."""
        message = await self._receive()
        size = len(message.get("body", b""))
        self._held += size
        try:
            self._service.hold(size)
        except Overloaded as error:
            raise HTTPException(503, f"{error}; try again later", _UNREAD | RETRY) from error
        if self._held > self._limit:
            raise self._too_large({})
        return message

    def release(self) -> None:
        """Says that the body is no longer in memory."""
        self._service.release(self._held)
        self._held = 0

    def _too_large(self, headers: dict[str, str]) -> HTTPException:
        why = f"body: larger than {self._limit} bytes; send fewer instances in a request"
        return HTTPException(413, why, headers)


class Reply:
    """Sends one answer, and keeps its status."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        self._headers = headers  # of every answer
        self.status = 0

    async def send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        """Sends an answer, if none was begun."""
        if self.status:
            return
        self.status = status
        every = (headers | self._headers).items()
        fields = [(k.encode(), v.encode("latin-1")) for k, v in every]
        fields.append((b"content-length", str(len(content)).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": fields})
        await self._send({"type": "http.response.body", "body": content})

    async def refuse(self, status: int, reason: str, headers: dict[str, str]) -> None:
        """Sends `{"error": reason}`."""
        content = orjson.dumps({"error": reason.encode(errors="replace").decode()})
        await self.send(content, headers | {"content-type": JSON}, status)

    async def pass_on(self, message: Message) -> None:
        """Sends a message of another application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def _timeout(headers: dict[str, str]) -> float | None:
    """How long the client waits, in seconds, if it says so. Raises BadRequest."""
    for name in TIMEOUTS:
        if name in headers:
            text = headers[name].strip()
            is_number = text.isascii() and text.isdecimal() and len(text) < 9
            if not is_number or not 1 <= int(text) <= _LONGEST_TIMEOUT_MS:
                limits = f"a whole number of milliseconds from 1 to {_LONGEST_TIMEOUT_MS}"
                raise BadRequest(f"{name}: {text!r:.40} is not {limits}")
            return int(text) / 1000
    return None


def _is_event(headers: dict[str, str]) -> bool:
    """Whether a request is a CloudEvent, which KServe unpacks."""
    content_type = headers.get("content-type", "")
    return "ce-specversion" in headers or content_type.startswith("application/cloudevents")
