"""How messages of gRPC are read: a bounded number at once, and none for ever."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio
from harness.ports import free_port
from prometheus_client import REGISTRY

# `import kserve` parses sys.argv.
_given, sys.argv = sys.argv, sys.argv[:1]
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages  # noqa: E402

from kfp_pytorch.serving.protocol import grpc as protocol  # noqa: E402

sys.argv = _given

from kfp_pytorch.serving import export, room  # noqa: E402
from kfp_pytorch.serving.errors import Overloaded  # noqa: E402
from kfp_pytorch.serving.predictor import Predictor  # noqa: E402
from kfp_pytorch.serving.protocol import reading  # noqa: E402
from kfp_pytorch.serving.room import Room  # noqa: E402
from kfp_pytorch.serving.service import Service, Settings  # noqa: E402

INFER = "/inference.GRPCInferenceService/ModelInfer"
PLACES = 3
LARGE_ROWS = 100
FAR = 1e12

# The predictor's own program ignores it, too.
pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")

Started = Callable[..., AbstractAsyncContextManager[str]]


def request(rows: int) -> bytes:
    tensor = {"name": "image", "shape": [rows, 1, 4, 4], "datatype": "UINT8"}
    raw = np.zeros((rows, 16), np.uint8).tobytes()
    made = messages.ModelInferRequest(
        model_name="digits", inputs=[tensor], raw_input_contents=[raw]
    )
    return bytes(made.SerializeToString())


SMALL, LARGE = request(1), request(LARGE_ROWS)


@pytest.fixture(scope="module")
def predictor(exported: Path) -> Predictor:
    return Predictor(export.load(exported, "cpu"))


@pytest.fixture
def started(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Starts servers that read three messages at once, one of which may take long."""
    monkeypatch.setattr(reading, "READ_BYTES", 0)
    monkeypatch.setattr(reading, "FEWEST_AT_ONCE", PLACES)
    monkeypatch.setattr(reading, "LARGE_BYTES", len(LARGE))
    monkeypatch.setattr(reading, "LONG_SECONDS", 0.2)

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[str]:
        address = f"127.0.0.1:{free_port()}"
        made = protocol.server(Service("digits", predictor, Settings(**settings)), address)
        await made.start()
        yield address
        await made.stop(None)

    return start


@asynccontextmanager
async def client(address: str) -> AsyncIterator[aio.Channel]:
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(address, own) as channel:
        yield channel


async def silent(channel: aio.Channel, count: int) -> list[Any]:
    """Calls whose message does not come, and that have been begun at the server."""
    calls = [channel.stream_unary(INFER)() for _ in range(count)]
    for call in calls:
        await call.wait_for_connection()
    # The connection's calls come one after the other.
    await channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")
    return calls


async def ended(calls: list[Any]) -> list[Any]:
    """The statuses of those that have ended."""
    return [await call.code() for call in calls if call.done()]


def counted(status: str) -> float:
    labels = {"model_name": "digits", "protocol": "grpc", "status": status}
    return REGISTRY.get_sample_value("kfp_pytorch_requests_total", labels) or 0.0


def test_a_message_that_does_not_come_gives_way_to_one_that_waits(started: Started) -> None:
    before = counted("UNAVAILABLE")

    async def story() -> None:
        async with started() as address, client(address) as slow, client(address) as quick:
            calls = await silent(slow, PLACES)
            await asyncio.sleep(0.4)
            assert await ended(calls) == []
            assert await quick.unary_unary(INFER)(SMALL, timeout=10)
            (stopped,) = [call for call in calls if call.done()]
            assert await stopped.code() is grpc.StatusCode.UNAVAILABLE
            assert "took more than 0.2 s, and other requests wait" in await stopped.details()
            assert dict(await stopped.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
            # A place is free now: nobody has to leave for the next.
            assert await quick.unary_unary(INFER)(SMALL, timeout=10)
            assert len(await ended(calls)) == 1

    asyncio.run(story())
    assert counted("UNAVAILABLE") == before + 1


def test_a_message_is_awaited_until_the_deadline(started: Started) -> None:
    before = counted("DEADLINE_EXCEEDED")

    async def story() -> None:
        async with started(timeout=0.3) as address, client(address) as slow:
            (call,) = await silent(slow, 1)
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert "the message did not come before" in await call.details()

    asyncio.run(story())
    assert counted("DEADLINE_EXCEEDED") == before + 1


def test_who_waits_too_long_to_be_read_is_told_to_come_back(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONG_SECONDS", 60.0)
    monkeypatch.setattr(reading, "WAIT_SECONDS", 0.3)

    async def story() -> None:
        async with started(max_waiting=1) as address, client(address) as channel:
            await silent(channel, PLACES)
            infer = channel.unary_unary(INFER)
            tries = [infer(SMALL), infer(SMALL)]
            assert {await each.code() for each in tries} == {grpc.StatusCode.UNAVAILABLE}
            said = sorted([await each.details() for each in tries])
            assert "1 requests wait to be read; try again later" in said[0]
            assert "too many other requests are being read; try again later" in said[1]
            # What needs no message does not wait.
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            assert await live(b"", timeout=10)

    asyncio.run(story())


def test_small_messages_do_not_wait_behind_those_of_a_client_that_sends_large_ones(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONG_SECONDS", 60.0)

    async def story() -> None:
        async with started() as address, client(address) as large, client(address) as small:
            await large.unary_unary(INFER)(LARGE, timeout=10)
            await silent(large, PLACES)
            began = time.monotonic()
            assert await small.unary_unary(INFER)(SMALL, timeout=10)
            assert time.monotonic() - began < 2

    asyncio.run(story())


def test_large_messages_wait_until_they_can_be_answered(started: Started) -> None:
    async def story() -> None:
        # Of four that are the largest, all can be answered at once.
        async with started(max_body=len(LARGE)) as address, client(address) as channel:
            infer = channel.unary_unary(INFER)
            await infer(LARGE, timeout=10)
            assert len(await asyncio.gather(*(infer(LARGE, timeout=30) for _ in range(20)))) == 20

    asyncio.run(story())


def test_a_client_that_leaves_while_it_waits_leaves_its_place_to_others(started: Started) -> None:
    before = counted("CANCELLED")

    async def story() -> None:
        async with started() as address, client(address) as slow, client(address) as quick:
            calls = await silent(slow, PLACES)
            waiting = quick.unary_unary(INFER)(SMALL)
            await asyncio.sleep(0.1)
            for call in [*calls, waiting]:
                call.cancel()
            assert await quick.unary_unary(INFER)(SMALL, timeout=10)

    asyncio.run(story())
    assert counted("CANCELLED") == before + PLACES + 1


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, ACKNOWLEDGED = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\0\x04\1\0\0\0\0"
# The first bytes of a head, and that more of it follows.
HALF = b"\0\0\1\1\0\0\0\0\1\x83"


def test_connections_without_calls_are_closed(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_IDLE_MS", 500)
    begun = PREFACE + SETTINGS + ACKNOWLEDGED

    async def story() -> None:
        async with started() as address, client(address) as channel:
            host, port = address.split(":")
            readers = []
            for sent in (b"", PREFACE, begun, begun + HALF):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(sent)
                readers.append(reader.read())
            (busy,) = await silent(channel, 1)
            async with asyncio.timeout(10):
                await asyncio.gather(*readers)
            assert not busy.done()

    asyncio.run(story())


def test_connections_that_do_not_begin_are_closed(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_HANDSHAKE_MS", 300)

    async def story() -> None:
        async with started() as address:
            for sent in (b"", PREFACE[:9], PREFACE + SETTINGS):
                reader, writer = await asyncio.open_connection(*address.split(":"))
                writer.write(sent)
                async with asyncio.timeout(10):
                    await reader.read()

    asyncio.run(story())


async def come(places: Room, *names: str) -> tuple[list[str], list[asyncio.Task[None]]]:
    """Those that enter in the order in which they are let in."""
    order = list[str]()

    async def enter(name: str) -> None:
        await places.enter(1, FAR)
        order.append(name)

    tasks = [asyncio.create_task(enter(name)) for name in names]
    await asyncio.sleep(0)
    return order, tasks


@pytest.mark.parametrize(("fair_seconds", "expected"), [(60.0, "abc"), (0.0, "acb")])
def test_the_first_that_came_is_the_next_until_somebody_has_waited_long(
    monkeypatch: pytest.MonkeyPatch, fair_seconds: float, expected: str
) -> None:
    monkeypatch.setattr(room, "FAIR_SECONDS", fair_seconds)

    async def story() -> str:
        places = Room(1, 10, 60.0)
        order, tasks = await come(places, "a", "b", "c")
        for _ in tasks:
            places.leave(1)
            await asyncio.sleep(0)
        return "".join(order)

    assert asyncio.run(story()) == expected


def test_room_that_somebody_got_who_left_at_that_moment_is_not_lost() -> None:
    async def story() -> None:
        places = Room(1, 10, 60.0)
        order, tasks = await come(places, "a", "b", "c")
        places.leave(1)
        tasks[1].cancel()
        await asyncio.gather(tasks[2])
        assert order == ["a", "c"]
        places.leave(1)
        assert places.free == 1

    asyncio.run(story())


def test_one_that_asks_for_room_to_spare_waits_for_that_too() -> None:
    async def story() -> None:
        places = Room(3, 10, 0.05)
        await places.enter(1, FAR, 2)
        with pytest.raises(Overloaded, match="too many other requests"):
            await places.enter(1, FAR, 2)
        await places.enter(2, FAR)
        assert places.free == 0

    asyncio.run(story())
