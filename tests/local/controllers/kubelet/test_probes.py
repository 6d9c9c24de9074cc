"""What a probe reports of a port that answers wrongly."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kfp_pytorch.local.controllers.kubelet import probes
from kfp_pytorch.local.controllers.kubernetes.ports import Ports


class OnePort:
    """Each port of a pod is this one."""

    def __init__(self, port: int) -> None:
        self._port = port

    def of(self, pod: Any, port: int) -> int:
        return self._port


async def verdict(answer: bytes) -> str:
    """What an HTTP probe says of a port that answers with these bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        ports = cast("Ports", OnePort(server.sockets[0].getsockname()[1]))
        probe = {"httpGet": {"port": 8080}, "timeoutSeconds": 10}
        check = probes.check({}, probe, ports)
        assert check is not None
        return await check()


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.1 503 Busy\r\n\r\n", "statuscode: 503"),
        (b"not http\r\n", "statuscode: 0"),
        (b"", "statuscode: 0"),
        (b"x" * 200_000, "malformed HTTP response: Separator is not found"),
        (b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n", "malformed HTTP response: Exceeds the limit"),
    ],
    ids=["well", "busy", "no HTTP", "nothing", "a line without end", "a number without end"],
)
def test_a_malformed_answer_fails_the_probe(answer: bytes, wrong: str) -> None:
    error = asyncio.run(verdict(answer))
    assert wrong in error
    assert bool(error) == bool(wrong)
