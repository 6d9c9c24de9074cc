"""ASGI middleware: refuses large or compressed bodies, and answers requests when draining ends."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Largest bodies that are read and answered at once. In JSON, 32 MiB of small numbers take 550 MiB
# (measured): more would not fit into the runtime's memory limit.
LARGEST_AT_ONCE = 4
DRAIN_SECONDS = 20
# Answers that are sent before the body was read; the rest of it makes the connection useless.
UNREAD = {"connection": "close"}
RETRY = {"retry-after": "1"}
REPOSITORY_PATH = "/v2/repository/"


class BodyLimit:
    """Refuses the paths that load models, and bodies that are compressed, too large or too many."""

    def __init__(self, application: ASGIApp, limit: int) -> None:
        self._application = application
        self._limit = limit
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event of ASGI."""
        if scope["type"] != "http":
            return await self._application(scope, receive, send)
        if scope["path"].startswith(REPOSITORY_PATH):
            refusal = _refusal("models are loaded at the server's start only", 404, {})
            return await refusal(scope, receive, send)
        headers = dict(scope["headers"])
        coding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if coding != "identity":
            why = f"content-encoding: {coding!r} is not read; send the body as it is"
            refusal = _refusal(why, 415, UNREAD | {"accept-encoding": "identity"})
            return await refusal(scope, receive, send)
        too_large = f"body: larger than {self._limit} bytes; send fewer instances in a request"
        if int(headers.get(b"content-length", 0)) > self._limit:
            return await _refusal(too_large, 413, UNREAD)(scope, receive, send)
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._held += size
            if received > self._limit:
                raise HTTPException(413, too_large)
            if self._held > LARGEST_AT_ONCE * self._limit:
                why = f"requests of {self._held} bytes are being answered; try again later"
                raise HTTPException(503, why, RETRY)
            return message

        try:
            return await self._application(scope, limited, send)
        finally:
            self._held -= received


class Drain:
    """Answers 503 to a request that uvicorn cancels because draining took too long."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection event of ASGI."""
        answering = False

        async def noted(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        try:
            await self._application(scope, receive, noted)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not answering:
                why = f"the predictor is stopping, and {DRAIN_SECONDS} s were too short; try again"
                await _refusal(why, 503, UNREAD | RETRY)(scope, receive, send)


def _refusal(why: str, status: int, headers: dict[str, str]) -> JSONResponse:
    return JSONResponse({"error": why}, status, headers)
