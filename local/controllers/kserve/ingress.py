"""One address for each InferenceService: passes connections on to the pods that are ready.

It is in place of a Service and the ingress before it. The address stays while pods come and go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Sequence

from kfp_pytorch.local import loopback

# Bytes read at once.
_CHUNK = 64 * 1024
_UNAVAILABLE = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\ncontent-length: 19\r\n"
    b"connection: close\r\n\r\nno healthy upstream"
)


class Ingress:
    """Listens on one port of 127.0.0.1 for the ports of the pods that are ready."""

    def __init__(self) -> None:
        self._socket = loopback.bound(0)
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.backends: Sequence[int] = ()
        self._turn = 0
        self._serving = asyncio.create_task(self._serve())

    def close(self) -> None:
        """Stop listening; connections that are open end with their pods."""
        self._serving.cancel()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, sock=self._socket)
        async with server:
            await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            backend = await self._connect()
            if backend is None:
                writer.write(_UNAVAILABLE)
                await writer.drain()
                return
            answers, requests = backend
            with contextlib.closing(requests):
                await asyncio.gather(_copy(reader, requests), _copy(answers, writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection to the next pod in turn that accepts one."""
        for _ in range(len(self.backends)):
            self._turn += 1
            port = self.backends[self._turn % len(self.backends)]
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(loopback.ADDRESS, port)
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.write_eof()


class Ingresses:
    """The ingresses of all InferenceServices of a cluster."""

    def __init__(self) -> None:
        self._ingresses: dict[Hashable, Ingress] = {}

    def route(self, key: Hashable, backends: Sequence[int]) -> str:
        """Pass connections on to these ports from now on; returns the URL, which stays."""
        if key not in self._ingresses:
            self._ingresses[key] = Ingress()
        self._ingresses[key].backends = backends
        return f"http://{loopback.HOST}:{self._ingresses[key].port}"

    def close(self, key: Hashable) -> None:
        """Close an InferenceService's ingress, if it has one."""
        ingress = self._ingresses.pop(key, None)
        if ingress:
            ingress.close()

    def close_all(self) -> None:
        """Close every ingress."""
        for key in list(self._ingresses):
            self.close(key)
