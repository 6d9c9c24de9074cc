"""Collects requests that wait into batches, which a thread beside the event loop answers.

A batch is what came while the model was busy, up to its largest size. When the model is free, a
request waits for a delay that may be set, and shortly for as many others as there were last: who
was answered together asks again together, and several small batches cost more than one.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import numpy as np

from kfp_pytorch.serving.errors import DeadlineExceeded, Overloaded
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.tensors import Array

# How many batches there are at once: a GPU computes one while the next is copied to it.
AT_ONCE = {"cpu": 1, "cuda": 2}
# Requests wait for as many as there were last for so many times as long as the last batch took, and
# for so many seconds, at most.
GATHER_BATCHES, GATHER_SECONDS = 2, 0.01

Run = Callable[[Sequence[Array], int], list[Answers | Exception]]


@dataclass(eq=False, slots=True)
class _Waiting:
    rows: Array
    top: int
    answer: asyncio.Future[Answers]
    since: float
    part: int  # its number among its request's parts
    turn: int  # its place in the queue

    @property
    def kind(self) -> tuple[object, ...]:
        """What requests of one batch have in common."""
        return self.rows.dtype, self.rows.shape[1:]


class Batcher:
    """The queue before the model. To be used in one event loop."""

    def __init__(
        self,
        run: Run,
        *,
        max_batch: int,
        max_waiting: int,
        max_bytes: int,
        delay: float = 0.0,
        at_once: int = 1,
        observe: Callable[[int, float], None] | None = None,
    ) -> None:
        """Makes an empty queue.

        Args:
            run: Answers the rows of several requests, in a thread.
            max_batch: The most rows in a batch.
            max_waiting: The most requests in the queue; one more is refused.
            max_bytes: The most bytes of rows in the queue.
            delay: How long a request waits for others when the model is free, in seconds.
            at_once: How many batches there are at the same time.
            observe: Is called after each batch, in its thread: rows, and how long it took.
        """
        self._run = run
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._delay = delay
        self._free = at_once
        self._observe = observe
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="model")
        self._queue: list[_Waiting] = []
        self._bytes = 0
        self._batches = 0  # that were started
        # When a batch was last done, how many requests there were then, and how long more wait.
        self._done = 0.0
        self._expected = 0
        self._gather = 0.0
        self._timer: asyncio.Handle | None = None

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._queue)

    async def answer(self, parts: Sequence[Array], top: int, deadline: float) -> Answers:
        """Answers the rows of one request, in order.

        `parts`: its rows, as arrays of one shape each. `deadline`: on the event loop's clock.
        Raises Overloaded, DeadlineExceeded, and what `run` answers for these rows.
        """
        pieces = [
            part[start : start + self._max_batch]
            for part in parts
            for start in range(0, len(part), self._max_batch)
        ]
        size = sum(piece.nbytes for piece in pieces)
        if len(self._queue) >= self._max_waiting or self._bytes + size > self._max_bytes:
            raise Overloaded(f"{len(self._queue)} requests wait for the model")
        entries = [self._add(piece, top, part) for part, piece in enumerate(pieces)]
        try:
            async with asyncio.timeout_at(deadline):
                found = [await entry.answer for entry in entries]
        except TimeoutError:
            raise DeadlineExceeded("the model had no time for it") from None
        finally:
            self._forget(entries)
        return found[0] if len(found) == 1 else _joined(found)

    def _add(self, rows: Array, top: int, part: int) -> _Waiting:
        loop = asyncio.get_running_loop()
        # A part counts as if it had come so many batches later: other requests get in between.
        turn = self._batches + part
        entry = _Waiting(rows, top, loop.create_future(), loop.time(), part, turn)
        bisect.insort(self._queue, entry, key=lambda waiting: waiting.turn)
        self._bytes += rows.nbytes
        may_start = self._free > 0 and self._start_time(self._queue) <= loop.time()
        if self._timer is not None and may_start:
            self._timer.cancel()
        if self._timer is None or may_start:
            # After what else has come by now.
            self._timer = loop.call_soon(self._start)
        return entry

    def _forget(self, entries: Sequence[_Waiting]) -> None:
        """Takes what has no answer out of the queue: it failed in part, or nobody waits for it."""
        left = [each for each in entries if each.answer.cancelled() or not each.answer.done()]
        for entry in left:
            entry.answer.cancel()
        if left:
            kept = [entry for entry in self._queue if entry not in left]
            self._queue = kept
            self._bytes = sum(entry.rows.nbytes for entry in kept)
        for entry in entries:
            if entry.answer.done() and not entry.answer.cancelled():
                # Of several errors only the first is raised.
                entry.answer.exception()

    def _start(self) -> None:
        """Starts batches while the model is free and something waits long enough."""
        self._timer = None
        while self._free and self._queue:
            loop = asyncio.get_running_loop()
            batch = self._next_batch()
            begin = self._start_time(batch)
            if begin > loop.time():
                self._timer = loop.call_at(begin, self._start)
                return
            taken = set(map(id, batch))
            self._queue = [entry for entry in self._queue if id(entry) not in taken]
            self._bytes -= sum(entry.rows.nbytes for entry in batch)
            self._free -= 1
            self._batches += 1
            self._threads.submit(self._compute, batch, loop)

    def _start_time(self, batch: Sequence[_Waiting]) -> float:
        """Until when a batch waits for more requests, on the event loop's clock."""
        if sum(len(entry.rows) for entry in batch) >= self._max_batch:
            return 0.0
        since = batch[0].since
        gather = self._gather if len(batch) < self._expected else 0.0
        return max(since + self._delay, max(since, self._done) + gather)

    def _next_batch(self) -> list[_Waiting]:
        """What has its turn, and those of its kind that fit into a batch with it."""
        kind, batch, rows = self._queue[0].kind, list[_Waiting](), 0
        for entry in self._queue:
            if entry.kind == kind and rows + len(entry.rows) <= self._max_batch:
                batch.append(entry)
                rows += len(entry.rows)
        return batch

    def _compute(self, batch: list[_Waiting], loop: asyncio.AbstractEventLoop) -> None:
        began = time.perf_counter()
        try:
            found = self._run([entry.rows for entry in batch], max(each.top for each in batch))
        except BaseException as error:  # whatever it is, somebody waits for the answer
            failure = error if isinstance(error, Exception) else RuntimeError(str(error))
            found = [failure] * len(batch)
        took = time.perf_counter() - began
        if self._observe is not None:
            self._observe(sum(len(entry.rows) for entry in batch), took)
        try:
            loop.call_soon_threadsafe(self._finish, batch, found, took)
        except RuntimeError:
            return  # the loop has ended, and with it the requests

    def _finish(self, batch: list[_Waiting], found: list[Answers | Exception], took: float) -> None:
        self._free += 1
        self._done = asyncio.get_running_loop().time()
        self._expected = sum(entry.part == 0 for entry in chain(batch, self._queue))
        self._gather = min(GATHER_BATCHES * took, GATHER_SECONDS)
        for entry, answer in zip(batch, found, strict=True):
            if entry.answer.done():
                continue
            if isinstance(answer, Exception):
                entry.answer.set_exception(answer)
            else:
                entry.answer.set_result(answer)
        if self._timer is None:
            self._start()


def _joined(found: Sequence[Answers]) -> Answers:
    """Answers as one. Raises ValueError: their outputs differ in shape."""
    first = found[0]
    return Answers(
        np.concatenate([each.output for each in found]),
        None if first.classes is None else np.concatenate([each.classes for each in found]),
        None if first.scores is None else np.concatenate([each.scores for each in found]),
    )
