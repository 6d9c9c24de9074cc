"""A response whose body is sent in pieces, until the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class Stream(Response):
    """Sends each piece as soon as there is one; notices at any time that the client disconnects."""

    def __init__(self, pieces: AsyncIterator[bytes], content_type: str) -> None:
        super().__init__(media_type=content_type)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002, D102
        await send(
            {"type": "http.response.start", "status": 200, "headers": list(self.raw_headers)}
        )
        pump = asyncio.create_task(self._pump(send))
        disconnect = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait({pump, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            pump.cancel()
            results = await asyncio.gather(pump, disconnect, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _pump(self, send: Send) -> None:
        async for piece in self._pieces:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
