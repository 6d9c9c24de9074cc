"""HTTP connections that wait: none for ever, and not more than there is room for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn

from kfp_pytorch.serving.protocol.connection import Connection, Connections

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
MOST = 8
PATIENCE_SECONDS = 20


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers a request when its body has come."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"OK"})


@contextmanager
def serving(idle_seconds: int) -> Iterator[Callable[..., socket.socket]]:
    """A server of eight connections; gives what opens one, and sends something."""
    config = uvicorn.Config(
        application,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=idle_seconds,
    )
    server = uvicorn.Server(config)
    server.server_state = Connections(MOST)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        running = threading.Thread(target=lambda: server.run([listening]))
        running.start()
        address = listening.getsockname()

        def connect(sent: bytes = b"") -> socket.socket:
            made = stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS))
            made.sendall(sent)
            return made

        yield connect
        server.should_exit = True
        stack.close()
        running.join()


@pytest.fixture(scope="module")
def connect() -> Iterator[Callable[..., socket.socket]]:
    with serving(idle_seconds=60) as opened:
        yield opened


def answered(client: socket.socket) -> bool:
    """Whether a whole answer comes."""
    found = b""
    while not found.endswith(b"OK"):
        part = client.recv(1000)
        if not part:
            return False
        found += part
    return found.startswith(b"HTTP/1.1 200 ")


def closed(client: socket.socket) -> bool:
    """Whether the server closes a connection, and sends nothing before."""
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", HALF, b"\r\n"], ids=["nothing", "half", "blank"])
def test_one_connection_too_many_takes_the_place_of_the_one_that_waited_longest(
    connect: Any, sent: bytes
) -> None:
    first, second, *_ = [connect(sent) for _ in range(MOST)]
    new = connect(GET)
    assert answered(new)
    assert closed(first)
    second.sendall(GET[len(sent) :] if sent == HALF else GET)
    assert answered(second)


def test_who_was_answered_last_waits_the_shortest(connect: Any) -> None:
    first, second, *_ = [connect() for _ in range(MOST)]
    first.sendall(GET)
    assert answered(first)
    assert answered(connect(GET))
    assert closed(second)
    first.sendall(GET)
    assert answered(first)


def test_a_request_that_is_being_answered_is_not_given_up(connect: Any) -> None:
    busy = connect(POST)
    clients = [connect(GET) for _ in range(3 * MOST)]
    assert answered(clients[-1])
    busy.sendall(b"{}")
    assert answered(busy)


def test_a_connection_that_is_idle_is_closed() -> None:
    with serving(idle_seconds=1) as connect:
        began = time.monotonic()
        silent, blank, used, busy = connect(), connect(), connect(GET), connect(POST)
        assert answered(used)
        while time.monotonic() < began + 0.7:
            blank.sendall(b"\r\n")
            time.sleep(0.1)
        assert all(closed(each) for each in (silent, blank, used))
        assert time.monotonic() < began + PATIENCE_SECONDS / 2
        busy.sendall(b"{}")
        assert answered(busy)
