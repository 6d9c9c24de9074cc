"""The queue before the model, with a model that is a function of the test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kfp_pytorch.serving import batching
from kfp_pytorch.serving.batching import Batcher
from kfp_pytorch.serving.errors import BadRequest, DeadlineExceeded, Overloaded
from kfp_pytorch.serving.predictor import Answers

Array = Any
FAR = 1e12


class Doubles:
    """A model that doubles its rows, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = threading.Event()
        self.began = threading.Event()
        self.may_answer.set()

    def __call__(self, requests: Sequence[Array], top: int) -> list[Answers | Exception]:
        self.batches.append([len(rows) for rows in requests])
        self.began.set()
        self.may_answer.wait(30)
        return [
            BadRequest("below 0") if (rows < 0).any() else Answers(rows * 2) for rows in requests
        ]


def batcher(model: Any, **changes: Any) -> Batcher:
    return Batcher(model, **{"max_batch": 8, "max_waiting": 100, "max_bytes": 10**6} | changes)


def rows(*values: float) -> list[Array]:
    return [np.array(values, dtype=np.float32)[:, None]]


async def gathered(queue: Batcher, *requests: list[Array]) -> list[Any]:
    calls = [queue.answer(parts, 1, FAR) for parts in requests]
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [each.output.ravel().tolist() if isinstance(each, Answers) else each for each in found]


async def while_busy(model: Doubles, queue: Batcher) -> asyncio.Task[Answers]:
    """Gives the model a request that it works at until it may answer."""
    model.may_answer.clear()
    task = asyncio.ensure_future(queue.answer(rows(0), 1, FAR))
    while not model.began.is_set():
        await asyncio.sleep(0)
    return task


def test_requests_that_come_together_are_one_batch_and_each_gets_its_own_answer() -> None:
    model = Doubles()
    found = asyncio.run(gathered(batcher(model), rows(1, 2), rows(3), rows(4, 5)))
    assert found == [[2, 4], [6], [8, 10]]
    assert model.batches == [[2, 1, 2]]


def test_what_comes_while_the_model_is_busy_is_the_next_batch() -> None:
    async def story() -> list[Any]:
        model = Doubles()
        queue = batcher(model)
        first = await while_busy(model, queue)
        others = asyncio.ensure_future(gathered(queue, rows(1), rows(2)))
        while queue.waiting < 2:
            await asyncio.sleep(0)
        model.may_answer.set()
        await first
        return [await others, model.batches]

    assert asyncio.run(story()) == [[[2], [4]], [[1], [1, 1]]]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a batch waits for as many requests as there were last: longer than usual."""
    monkeypatch.setattr(batching, "GATHER_BATCHES", 10_000)
    monkeypatch.setattr(batching, "GATHER_SECONDS", 0.3)
    return 0.3


@pytest.mark.usefixtures("patient")
def test_clients_that_were_answered_together_are_waited_for_when_they_ask_again() -> None:
    async def story() -> list[list[int]]:
        model = Doubles()
        queue = batcher(lambda *given: (time.sleep(0.001), model(*given))[1])

        async def client(number: int) -> None:
            for _ in range(3):
                await queue.answer(rows(number), 1, FAR)
                await asyncio.sleep(0.001 * number)

        await asyncio.gather(*map(client, range(4)))
        return model.batches

    assert asyncio.run(story()) == [[1] * 4] * 3


def test_one_client_waits_for_nobody_and_of_two_one_waits_once(patient: float) -> None:
    async def waits(*before: list[Array]) -> list[float]:
        queue = batcher(lambda *given: (time.sleep(0.001), Doubles()(*given))[1])
        await gathered(queue, *before)
        taken = []
        for _ in range(2):
            began = time.monotonic()
            await queue.answer(rows(1), 1, FAR)
            taken.append(time.monotonic() - began)
        return taken

    # A request in parts is one client's.
    assert max(asyncio.run(waits(rows(*range(20))))) < patient
    first, second = asyncio.run(waits(rows(1), rows(2)))
    assert second < patient <= first


def test_a_batch_has_at_most_so_many_rows_and_a_large_request_is_cut() -> None:
    model = Doubles()
    found = asyncio.run(gathered(batcher(model, max_batch=3), rows(1, 2), rows(*range(7)), rows(9)))
    assert found == [[2, 4], [0, 2, 4, 6, 8, 10, 12], [18]]
    assert max(sum(batch) for batch in model.batches) <= 3


def test_a_request_that_comes_while_parts_of_a_large_one_wait_is_answered_between_them() -> None:
    async def story() -> tuple[Doubles, bool]:
        model = Doubles()
        queue = batcher(model)
        first = await while_busy(model, queue)
        before: list[bool] = []
        large = asyncio.ensure_future(queue.answer(rows(*range(32)), 1, FAR))
        await asyncio.sleep(0)
        small = asyncio.ensure_future(queue.answer(rows(1), 1, FAR))
        small.add_done_callback(lambda _: before.append(large.done()))
        model.may_answer.set()
        answers = (await large).output.ravel().tolist()
        assert answers == [2 * value for value in range(32)]
        await asyncio.gather(first, small)
        return model, before[0]

    model, was_last = asyncio.run(story())
    assert model.batches == [[1], [8], [1], [8], [8], [8]]
    assert not was_last


def test_a_large_request_gets_on_while_small_ones_never_cease() -> None:
    async def story() -> list[list[int]]:
        model = Doubles()
        queue = batcher(model)
        first = await while_busy(model, queue)
        large = asyncio.ensure_future(queue.answer(rows(*range(24)), 1, FAR))
        model.may_answer.set()

        async def client() -> None:
            while not large.done():
                await queue.answer(rows(1), 1, FAR)

        await asyncio.gather(first, large, *(client() for _ in range(4)))
        return model.batches

    # Of two batches at least one is a part of it.
    batches = asyncio.run(story())
    last = max(i for i, batch in enumerate(batches) if batch == [8])
    assert batches.count([8]) == 3
    assert last <= 8


def test_requests_of_another_shape_or_type_are_not_in_one_batch() -> None:
    model = Doubles()
    wide = [np.ones((2, 5), dtype=np.float32)]
    whole = [np.ones((1, 1), dtype=np.uint8)]
    found = asyncio.run(gathered(batcher(model), rows(1), wide, whole, rows(2)))
    assert found == [[2], [2] * 10, [2], [4]]
    assert sorted(model.batches) == [[1], [1, 1], [2]]


def test_an_error_of_one_request_is_not_that_of_the_others() -> None:
    bad, good = asyncio.run(gathered(batcher(Doubles()), rows(-1), rows(3)))
    assert isinstance(bad, BadRequest)
    assert good == [6]


def test_a_model_that_fails_as_a_whole_fails_each_request_and_the_queue_goes_on() -> None:
    model = Doubles()

    def broken(requests: Sequence[Array], top: int) -> list[Answers | Exception]:
        if len(model.batches) == 0:
            model.batches.append([])
            raise RuntimeError("gone")
        return model(requests, top)

    async def story() -> list[Any]:
        queue = batcher(broken)
        return [await gathered(queue, rows(1), rows(2)), await gathered(queue, rows(3))]

    failed, after = asyncio.run(story())
    assert [str(each) for each in failed] == ["gone", "gone"]
    assert after == [[6]]


def test_a_full_queue_refuses_and_takes_requests_again_later() -> None:
    async def story() -> list[Any]:
        model = Doubles()
        queue = batcher(model, max_waiting=1)
        first = await while_busy(model, queue)
        second = asyncio.ensure_future(queue.answer(rows(1), 1, FAR))
        while not queue.waiting:
            await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 requests wait for the model"):
            await queue.answer(rows(2), 1, FAR)
        model.may_answer.set()
        await asyncio.gather(first, second)
        return await gathered(queue, rows(3))

    assert asyncio.run(story()) == [[6]]


def test_a_queue_of_too_many_bytes_refuses_too() -> None:
    async def story() -> None:
        with pytest.raises(Overloaded):
            await batcher(Doubles(), max_bytes=7).answer(rows(1, 2), 1, FAR)

    asyncio.run(story())


def test_a_request_whose_deadline_has_come_leaves_the_queue() -> None:
    async def story() -> list[list[int]]:
        model = Doubles()
        queue = batcher(model)
        first = await while_busy(model, queue)
        soon = asyncio.get_running_loop().time() + 0.01
        with pytest.raises(DeadlineExceeded):
            await queue.answer(rows(1), 1, soon)
        assert queue.waiting == 0
        model.may_answer.set()
        await first
        return model.batches

    assert asyncio.run(story()) == [[1]]


def test_with_a_delay_a_request_waits_for_others_until_the_batch_is_full() -> None:
    async def story() -> list[list[int]]:
        model = Doubles()
        queue = batcher(model, max_batch=2, delay=60)
        first = asyncio.ensure_future(queue.answer(rows(1), 1, FAR))
        while not queue.waiting:
            await asyncio.sleep(0)
        await queue.answer(rows(2), 1, FAR)
        await first
        return model.batches

    assert asyncio.run(story()) == [[1, 1]]


def test_with_a_delay_a_request_alone_is_answered_after_it() -> None:
    assert asyncio.run(gathered(batcher(Doubles(), delay=0.01), rows(1))) == [[2]]
