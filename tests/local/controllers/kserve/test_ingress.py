"""How requests reach the pods of an InferenceService: shares, updates, and what servers may do."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kfp_pytorch.local import loopback
from kfp_pytorch.local.controllers.kserve.ingress import Backend, Ingress, Split, Target
from kfp_pytorch.local.controllers.kubernetes.requests import Requests

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Answering = Callable[[bytes, Reader, Writer], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
FREE_PORT = 1  # nothing listens there


@asynccontextmanager
async def server(answering: Answering) -> AsyncIterator[int]:
    """A model server that gets the head of each request; gives its port."""

    async def connected(reader: Reader, writer: Writer) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await answering(await reader.readuntil(b"\r\n\r\n"), reader, writer)
            await writer.drain()

    sock = loopback.bound(0)
    listening = await asyncio.start_server(connected, sock=sock)
    async with listening:
        yield sock.getsockname()[1]


def says(text: str) -> Answering:
    async def answering(head: bytes, reader: Reader, writer: Writer) -> None:
        body = await reader.readexactly(length(head))
        content = text.encode() + body
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content))

    return answering


def length(head: bytes) -> int:
    lines = [line.split(b":") for line in head.lower().split(b"\r\n") if b":" in line]
    return next((int(line[1]) for line in lines if line[0] == b"content-length"), 0)


class Client:
    """A client that keeps its connection."""

    def __init__(self, ingress: Ingress) -> None:
        self._connection = http.client.HTTPConnection(loopback.ADDRESS, ingress.port, timeout=30)

    async def ask(self, method: str = "GET", **request: Any) -> tuple[int, bytes]:
        def once() -> tuple[int, bytes]:
            self._connection.request(method, "/v1/models/m:predict", **request)
            answer = self._connection.getresponse()
            return answer.status, answer.read()

        return await asyncio.to_thread(once)


def backends(*ports: int) -> list[Backend]:
    return [Backend(f"pod-{port}", port) for port in ports]


def story(told: Callable[[Ingress, Requests], Awaitable[None]]) -> None:
    async def run() -> None:
        requests = Requests()
        ingress = Ingress(requests)
        async with asyncio.timeout(60):
            await told(ingress, requests)
        ingress.close()

    asyncio.run(run())


def chosen(targets: list[Target], count: int = 100) -> Counter[int]:
    split = Split(targets)
    return Counter(next(split.order()).port for _ in range(count))


def test_each_revision_gets_its_share_and_each_pod_of_it_the_same() -> None:
    targets = [Target(10, backends(1)), Target(90, backends(2, 3))]
    assert chosen(targets) == {1: 10, 2: 45, 3: 45}


def test_a_revision_without_pods_leaves_its_share_and_one_without_a_share_gets_nothing() -> None:
    assert chosen([Target(10, []), Target(90, backends(2))]) == {2: 100}
    assert chosen([Target(0, backends(1)), Target(100, backends(2))]) == {2: 100}
    assert list(Split([Target(0, backends(1)), Target(100, [])]).order()) == []


def test_no_request_fails_while_pods_come_and_go() -> None:
    async def slow(head: bytes, reader: Reader, writer: Writer) -> None:
        await asyncio.sleep(0.02)
        await says("ok ")(head, reader, writer)

    async def told(ingress: Ingress, requests: Requests) -> None:
        answers: list[tuple[int, bytes]] = []
        ended = asyncio.Event()

        async def load() -> None:
            client = Client(ingress)
            while not ended.is_set():
                answers.append(await client.ask("POST", body=b"x" * 100_000))

        async def replace(old: int, stack: contextlib.AsyncExitStack) -> int:
            new: int = await stack.enter_async_context(server(slow))
            ingress.split.targets = [Target(100, backends(old, new))]
            known = len(answers)
            while len(answers) < known + 6:
                await asyncio.sleep(0.01)
            if requests.leave(f"pod-{old}"):
                await requests.drained(f"pod-{old}", 10)
            return new

        async with contextlib.AsyncExitStack() as last:
            port = await last.enter_async_context(server(slow))
            ingress.split.targets = [Target(100, backends(port))]
            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(load())
                for _ in range(8):
                    stack = contextlib.AsyncExitStack()
                    port = await replace(port, stack)
                    await last.aclose()  # the one before ends, with whatever it was doing
                    last.push_async_exit(stack)
                ended.set()
        assert {status for status, _ in answers} == {200}

    story(told)


def test_a_pod_that_refuses_the_connection_is_passed_over() -> None:
    async def told(ingress: Ingress, _requests: Requests) -> None:
        async with server(says("here ")) as port:
            ingress.split.targets = [Target(100, backends(FREE_PORT, port))]
            client = Client(ingress)
            answers = [await client.ask("POST", body=b"x") for _ in range(4)]
        assert answers == [(200, b"here x")] * 4

    story(told)


def test_without_a_pod_that_takes_requests_the_answer_is_503() -> None:
    async def told(ingress: Ingress, requests: Requests) -> None:
        assert await Client(ingress).ask() == (503, b"no healthy upstream")
        async with server(says("here")) as port:
            ingress.split.targets = [Target(100, backends(port))]
            requests.leave(f"pod-{port}")
            assert await Client(ingress).ask() == (503, b"no healthy upstream")

    story(told)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            (200, b"ab"),
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", (200, b"until the end")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
        (b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n", (413, b"")),
        (b"", (502, b"the model server closed the connection")),
        (b"no HTTP at all\r\n\r\n", (502, b"the model server closed the connection")),
    ],
)
def test_what_a_server_answers_reaches_the_client(answer: bytes, read: tuple[int, bytes]) -> None:
    async def told(ingress: Ingress, _requests: Requests) -> None:
        async def answering(_head: bytes, _reader: Reader, writer: Writer) -> None:
            writer.write(answer)

        async with server(answering) as port:
            ingress.split.targets = [Target(100, backends(port))]
            assert await Client(ingress).ask("POST", body=b"x") == read

    story(told)


def test_an_answer_that_is_cut_off_is_cut_off_for_the_client_too() -> None:
    async def told(ingress: Ingress, _requests: Requests) -> None:
        async def answering(_head: bytes, _reader: Reader, writer: Writer) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")

        async with server(answering) as port:
            ingress.split.targets = [Target(100, backends(port))]
            with pytest.raises(http.client.IncompleteRead):
                await Client(ingress).ask()

    story(told)


def test_an_answer_that_comes_in_parts_is_passed_on_as_it_comes() -> None:
    async def told(ingress: Ingress, _requests: Requests) -> None:
        read = asyncio.Event()

        async def answering(_head: bytes, _reader: Reader, writer: Writer) -> None:
            writer.write(CHUNKED + b"1\r\na\r\n")
            await writer.drain()
            await read.wait()
            writer.write(b"1\r\nb\r\n0\r\n\r\n")

        async with server(answering) as port:
            ingress.split.targets = [Target(100, backends(port))]
            reader, writer = await asyncio.open_connection(loopback.ADDRESS, ingress.port)
            writer.write(b"GET / HTTP/1.1\r\nhost: m\r\n\r\n")
            assert (await reader.readuntil(b"a\r\n")).startswith(b"HTTP/1.1 200")
            read.set()
            assert await reader.readuntil(b"0\r\n\r\n")
            writer.close()

    story(told)


def test_a_client_that_leaves_leaves_no_request_behind() -> None:
    async def told(ingress: Ingress, requests: Requests) -> None:
        seen = asyncio.Event()

        async def answering(head: bytes, reader: Reader, writer: Writer) -> None:
            seen.set()
            await says("")(head, reader, writer)

        async with server(answering) as port:
            ingress.split.targets = [Target(100, backends(port))]
            _, writer = await asyncio.open_connection(loopback.ADDRESS, ingress.port)
            writer.write(b"POST / HTTP/1.1\r\nhost: m\r\ncontent-length: 9\r\n\r\nhalf")
            await seen.wait()
            writer.transport.abort()
            while requests.leave(f"pod-{port}"):
                await asyncio.sleep(0.01)

    story(told)


def test_what_is_not_http_is_answered_with_400_and_http2_is_passed_on_whole() -> None:
    async def told(ingress: Ingress, _requests: Requests) -> None:
        async def answering(head: bytes, _reader: Reader, writer: Writer) -> None:
            writer.write(b"got " + head)

        async def answer(text: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(loopback.ADDRESS, ingress.port)
            writer.write(text)
            with contextlib.closing(writer):
                return await reader.read()

        async with server(answering) as port:
            ingress.split.targets = [Target(100, backends(port))]
            assert (await answer(b"\x00\x01 what\r\n\r\n")).startswith(b"HTTP/1.1 400")
            assert await answer(b"PRI * HTTP/2.0\r\n\r\n") == b"got PRI * HTTP/2.0\r\n\r\n"

    story(told)
