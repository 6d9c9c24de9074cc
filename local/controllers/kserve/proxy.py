"""Passes HTTP/1.1 requests on, each over a connection of its own to the server.

A connection that a server keeps open for later may be closed just when it is used again. So none is
kept, and a request fails only where its own server fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterable, Iterator

import h11

# Bytes read at once.
_CHUNK = 64 * 1024
_HEAD_LIMIT = 64 * 1024
# Of one connection, not of what goes over it: RFC 9110, section 7.6.1.
_HOP_BY_HOP = (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade")

Header = tuple[bytes, bytes]


class Stream:
    """One side of a connection: h11's state, and the bytes to and from it."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: StreamReader,
        writer: StreamWriter,
    ) -> None:
        self.state = h11.Connection(role, max_incomplete_event_size=_HEAD_LIMIT)
        self._reader, self._writer = reader, writer

    async def receive(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event. Raises h11.RemoteProtocolError: what came is not HTTP, or not whole."""
        while (event := self.state.next_event()) is h11.NEED_DATA:
            self.state.receive_data(await self._reader.read(_CHUNK))
        return event

    def given(self, data: bytes) -> None:
        """Takes bytes that were read already."""
        self.state.receive_data(data)

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()

    async def send(self, event: h11.Event) -> None:
        """Send an event. Raises OSError: the other side is gone."""
        data = self.state.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()


async def answer(client: Stream, status: int, text: str) -> None:
    """Send an answer of the proxy's own, and close the connection after it."""
    body = text.encode()
    headers = [("content-type", "text/plain"), ("content-length", str(len(body)))]
    headers.append(("connection", "close"))
    await client.send(h11.Response(status_code=status, headers=headers))
    await client.send(h11.Data(data=body))
    await client.send(h11.EndOfMessage())


async def exchange(client: Stream, request: h11.Request, server: Stream) -> None:
    """Pass one request on, and its answer back. Raises OSError: the client is gone."""
    headers = [*_end_to_end(request.headers), (b"connection", b"close")]
    sent = h11.Request(method=request.method, target=request.target, headers=headers)
    uploading = asyncio.create_task(_upload(client, server, sent))
    try:
        await _download(server, client)
    finally:
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)


async def _upload(client: Stream, server: Stream, request: h11.Request) -> None:
    # A server may answer before it has read the whole body: then its answer counts.
    with contextlib.suppress(OSError, h11.LocalProtocolError):
        await server.send(request)
        while not isinstance(event := await _part(client), h11.ConnectionClosed):
            await server.send(event)
            if isinstance(event, h11.EndOfMessage):
                return
    server.abort()


async def _part(client: Stream) -> h11.Data | h11.EndOfMessage | h11.ConnectionClosed:
    """The next part of a client's request, without trailers."""
    try:
        event = await client.receive()
    except h11.RemoteProtocolError:
        return h11.ConnectionClosed()
    if isinstance(event, h11.Data):
        return event
    return h11.EndOfMessage() if isinstance(event, h11.EndOfMessage) else h11.ConnectionClosed()


async def _download(server: Stream, client: Stream) -> None:
    while True:
        try:
            event = await server.receive()
        except (OSError, h11.RemoteProtocolError):
            event = h11.ConnectionClosed()
        if isinstance(event, h11.Response | h11.InformationalResponse):
            headers = list(_end_to_end(event.headers))
            await client.send(type(event)(status_code=event.status_code, headers=headers))
        elif isinstance(event, h11.Data):
            await client.send(event)
        elif isinstance(event, h11.EndOfMessage):
            await client.send(h11.EndOfMessage())
            return
        else:
            if client.state.our_state is h11.SEND_RESPONSE:
                await answer(client, 502, "the model server closed the connection")
            return


def _end_to_end(headers: Iterable[Header]) -> Iterator[Header]:
    named = {
        word.strip().lower()
        for name, value in headers
        if name == b"connection"
        for word in value.split(b",")
    }
    return ((n, v) for n, v in headers if n not in _HOP_BY_HOP and n not in named)


async def copy(reader: StreamReader, writer: StreamWriter) -> None:
    """Copy bytes until their end."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    finally:
        with contextlib.suppress(OSError):
            writer.write_eof()
