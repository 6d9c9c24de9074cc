"""The actions of faults: what happens to a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kfp_pytorch.local.apiserver.errors import STALE, ApiError, Object
from kfp_pytorch.local.apiserver.http.streaming import disconnected


class Connection(Protocol):
    """What an action may do to the connection that a request came by."""

    def reset(self) -> None:
        """Breaks the connection off with a TCP reset."""

    def close(self) -> None:
        """Closes the connection when what was sent has been delivered."""

    def refuse(self, seconds: float) -> None:
        """Breaks every connection off and refuses new ones for some seconds."""


@dataclass
class Call:
    """A request that a fault applies to.

    Attributes:
        app: The server behind.
        scope: The request, as ASGI gives it.
        receive: Gives the request's body.
        send: Takes the answer.
        connection: The connection that it came by.
        verb: The Kubernetes verb.
        state: What the fault remembers from one request to the next.
    """

    app: ASGIApp
    scope: Scope
    receive: Receive
    send: Send
    connection: Connection
    verb: str
    state: Object

    def header(self, name: bytes) -> str:
        """A header of the request, or an empty string."""
        return next((v.decode("latin-1") for k, v in self.scope["headers"] if k == name), "")

    async def handle(self, send: Send | None = None) -> None:
        """Lets the server answer."""
        await self.app(self.scope, self.receive, send or self.send)

    async def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Answers in the server's place."""
        encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})

    async def reset(self) -> None:
        """Breaks the connection off."""
        self.connection.reset()
        await disconnected(self.receive)


class Action(Protocol):
    """One kind of what can go wrong."""

    async def strike(self, call: Call) -> None:
        """Lets it go wrong for one request."""


_DEFAULTS = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    404: ("NotFound", "the server could not find the requested resource"),
    409: ("Conflict", f"Operation cannot be fulfilled: {STALE}"),
    410: ("Expired", "too old resource version: 1 (2)"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to wait"),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


@dataclass(frozen=True)
class Answer:
    """The server answers with an error, and does nothing.

    Attributes:
        code: The HTTP status.
        reason: The Status' reason; empty for the usual one.
        message: Its message; empty for the usual one.
        retry_after: The seconds of a Retry-After header; None for no header.
        body: A body in place of a Status, such as a proxy's; empty for the Status.
    """

    code: int
    reason: str = ""
    message: str = ""
    retry_after: int | None = None
    body: str = ""

    async def strike(self, call: Call) -> None:
        """Answers."""
        headers = {"content-type": "text/plain" if self.body else "application/json"}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        text = self.body or json.dumps(status(self.code, self.reason, self.message))
        await call.answer(self.code, text.encode(), headers)


def status(code: int, reason: str = "", message: str = "") -> Object:
    """A Status object of an error; empty words are the usual ones of its code."""
    usual = _DEFAULTS.get(code, ("", f"HTTP {code}"))
    return ApiError(code, reason or usual[0], message or usual[1]).status()


@dataclass(frozen=True)
class Forbidden:
    """403, in the words of RBAC.

    Attributes:
        user: Who may not.
        role_not_found: A ClusterRole that the server says it does not find; empty for none.
    """

    user: str = "system:serviceaccount:kubeflow:pipeline-runner"
    role_not_found: str = ""

    async def strike(self, call: Call) -> None:
        """Answers."""
        parts = call.scope["path"].strip("/").split("/")
        if parts[0] not in ("api", "apis") or len(parts) < 3:
            why = f'User "{self.user}" cannot {call.verb} path "{call.scope["path"]}"'
            await Answer(403, "Forbidden", f"forbidden: {why}").strike(call)
            return
        group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        where = " at the cluster scope"
        if rest[0] == "namespaces" and len(rest) > 2:
            where, rest = f' in the namespace "{rest[1]}"', rest[2:]
        plural, name = rest[0], rest[1] if len(rest) > 1 else ""
        resource = f"{plural}/{rest[2]}" if len(rest) > 2 else plural
        subject = f"{plural}.{group}" if group else plural
        subject += f' "{name}"' if name else ""
        why = f'User "{self.user}" cannot {call.verb} resource "{resource}" in API group "{group}"'
        message = f"{subject} is forbidden: {why}{where}"
        if self.role_not_found:
            role = f'clusterrole.rbac.authorization.k8s.io "{self.role_not_found}"'
            message += f": RBAC: {role} not found"
        await Answer(403, "Forbidden", message).strike(call)


@dataclass(frozen=True)
class TokenExpired:
    """401 for the bearer token of the first request, until requests carry another."""

    async def strike(self, call: Call) -> None:
        """Answers, or lets a request with a new token through."""
        token = call.header(b"authorization")
        if token == call.state.setdefault("token", token):
            await Answer(401).strike(call)
        else:
            await call.handle()


@dataclass(frozen=True)
class Refuse:
    """The server goes away: every connection breaks, new ones are refused for some seconds."""

    seconds: float = 1.0

    async def strike(self, call: Call) -> None:
        """Goes away."""
        call.connection.refuse(self.seconds)
        await disconnected(call.receive)


@dataclass(frozen=True)
class Delay:
    """The server is slow.

    Attributes:
        seconds: How long the request lies before it is looked at.
    """

    seconds: float

    async def strike(self, call: Call) -> None:
        """Waits, then lets the request through."""
        await asyncio.sleep(self.seconds)
        await call.handle()


@dataclass(frozen=True)
class Stall:
    """The connection stays open and nothing comes, for ever.

    Attributes:
        after_bytes: How much of the answer's body comes first; None for not even a status, and a
            server that does nothing.
    """

    after_bytes: int | None = None

    async def strike(self, call: Call) -> None:
        """Says no more."""
        if self.after_bytes is not None:
            await _cut(call, self.after_bytes)
        await disconnected(call.receive)


@dataclass(frozen=True)
class Trickle:
    """The answer comes byte by byte, and has no end.

    Attributes:
        pause_s: Seconds between two bytes.
    """

    pause_s: float = 0.1

    async def strike(self, call: Call) -> None:
        """Goes on for as long as the client reads."""
        headers = [(b"content-type", b"application/json")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        ended = asyncio.ensure_future(disconnected(call.receive))
        while not ended.done():
            await call.send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(self.pause_s)


@dataclass(frozen=True)
class Reset:
    """The connection is reset.

    Attributes:
        after_bytes: How much of the answer's body comes first; None for not even a status, and a
            server that does nothing.
    """

    after_bytes: int | None = None

    async def strike(self, call: Call) -> None:
        """Breaks the connection off."""
        if self.after_bytes is not None:
            await _cut(call, self.after_bytes)
        await call.reset()


@dataclass(frozen=True)
class EndsAfter:
    """The answer ends in good order too early, as from a server that stops gracefully.

    Attributes:
        bytes: How much of the answer's body comes.
    """

    bytes: int

    async def strike(self, call: Call) -> None:
        """Ends the answer."""
        await _cut(call, self.bytes)
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})


@dataclass(frozen=True)
class LostAnswer:
    """The server does what it was asked for, and the client never learns it.

    Attributes:
        then: What the client sees: `stall`, `reset`, or `timeout` for a 504.
    """

    then: str = "stall"

    async def strike(self, call: Call) -> None:
        """Lets the server work, and keeps its answer."""

        async def nothing(message: Message) -> None:
            pass

        await call.handle(nothing)
        if self.then == "reset":
            await call.reset()
        elif self.then == "timeout":
            await Answer(504).strike(call)
        else:
            await disconnected(call.receive)


class EnoughError(Exception):
    """As much of an answer was sent as should be."""


async def _cut(call: Call, limit: int) -> None:
    """Sends the beginning of the server's answer."""
    left = limit

    async def some(message: Message) -> None:
        nonlocal left
        if message["type"] == "http.response.start":
            await call.send(message)
            return
        body = message.get("body", b"")
        piece = body[:left]
        left -= len(piece)
        await call.send({"type": "http.response.body", "body": piece, "more_body": True})
        if left == 0 and (len(piece) < len(body) or not message.get("more_body")):
            raise EnoughError

    await until_enough(call, some)


async def until_enough(call: Call, send: Callable[[Message], Awaitable[None]]) -> None:
    """Lets the server answer until `send` raises `EnoughError`."""
    with suppress(EnoughError):
        await call.handle(send)
