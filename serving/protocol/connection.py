"""An HTTP connection: uvicorn's, with limits of what a client may send beside its body."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

# Of a request's first line and headers, and of what follows a part of its body and is none itself.
MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
# Of a connection, beside the one that is answered; proxies send the next one after an answer.
MOST_WAITING = 16
_OFFERING = (b"connection", b"upgrade", b"http2-settings")
_REFUSAL = (
    b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b"
)


class _Refused(Exception):
    """Ends the reading of what has come: the connection is closed."""


class Connections(ServerState):
    """The connections of a server, of which there are not more than some number.

    One more takes the place of that which has waited longest for a request, or for the rest of its
    head: so health is answered, however many there are.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._waiting: dict[Connection, None] = {}

    def wait(self, connection: Connection) -> None:
        """Says that a connection has no request, since now."""
        self._waiting[connection] = None

    def wait_no_more(self, connection: Connection) -> None:
        """Says that a connection has a request, or is closed."""
        self._waiting.pop(connection, None)

    def make_room(self) -> None:
        """Closes one that waits, if there are too many."""
        if len(self.connections) > self._most:
            longest = next(iter(self._waiting))
            self.wait_no_more(longest)
            self.connections.discard(longest)
            # Not before what it was sent is taken, which may be never.
            longest.transport.abort()


class Connection(HttpToolsProtocol):
    """Closes itself where a head is too large or too slow; its bytes would be kept without end.

    So would be the headers that may follow a body in chunks, and requests before an answer. It
    speaks HTTP/1.1 alone: a request that offers another protocol, as Java's client does with its
    first, is read as if it did not. The parser would take its body for that protocol.
    """

    server_state: Connections

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._in_head = True
        self._in_body = self._had_body = False
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for a first request no longer than for another one."""
        super().connection_made(transport)
        self.server_state.wait(self)
        self.server_state.make_room()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends all waiting."""
        self._end_head()
        self._unset_keepalive_if_required()
        self.server_state.wait_no_more(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads what came, of which no more is kept than the limit and one read."""
        before, self._had_body = (self._in_head, self._in_body), False
        self._read(data)
        if self._had_body or (self._in_head, self._in_body) != before:
            self._size = 0
        elif self._in_head or self._in_body:
            self._size += len(data)
            if self._size > MOST_HEAD_BYTES:
                why = f"headers: larger than {MOST_HEAD_BYTES} bytes"
                self._refuse("431 Request Header Fields Too Large", why)

    def _read(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self.parser.get_method() == b"CONNECT":
                self.send_400_response("Invalid HTTP request received.")
                return
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self._read(head + data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _head_without_offer(self) -> bytes:
        """The request's head as it came, but for the headers that offer another protocol."""
        lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] not in _OFFERING]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        """Is called at a request's first byte."""
        if len(self.pipeline) >= MOST_WAITING:
            why = f"requests: more than {MOST_WAITING} wait in this connection"
            self._refuse("429 Too Many Requests", why)
            raise _Refused
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._in_head = True
        why = f"headers: they took more than {HEAD_SECONDS:g} s"
        self._timer = self.loop.call_later(HEAD_SECONDS, self._refuse, "408 Request Timeout", why)

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, unless it was refused."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Is called for each header. Those that follow a body are of no use to anybody."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Is called at the end of a request's head."""
        self._end_head()
        if self.parser.should_upgrade():
            return
        self._in_body = True
        self._unset_keepalive_if_required()
        self.server_state.wait_no_more(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Is called for each part of a body."""
        self._had_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Is called at a request's end."""
        if self.parser.should_upgrade():
            return
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Is called at an answer's end."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self.server_state.wait(self)

    def _wait(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _end_head(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: str, why: str) -> None:
        if self.transport.is_closing():
            return
        # An answer that has begun may not get another one into it.
        if not (self._in_body and self.cycle.response_started):
            content = b'{"error": "%b"}' % why.encode()
            self.transport.write(_REFUSAL % (status.encode(), len(content), content))
        self.transport.close()
