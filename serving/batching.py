"""Collects requests that wait into batches, which a thread beside the event loop answers.

A batch is what came while the model was busy, up to its largest size: no request waits for others
when the model is free, but for a delay that may be set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from kfp_pytorch.serving.errors import DeadlineExceeded, Overloaded
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.tensors import Array

# How many batches there are at once: a GPU computes one while the next is copied to it.
AT_ONCE = {"cpu": 1, "cuda": 2}

Run = Callable[[Sequence[Array], int], list[Answers | Exception]]


@dataclass(eq=False, slots=True)
class _Waiting:
    rows: Array
    top: int
    answer: asyncio.Future[Answers]
    since: float

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
        entries = [self._add(piece, top) for piece in pieces]
        try:
            async with asyncio.timeout_at(deadline):
                found = [await entry.answer for entry in entries]
        except TimeoutError:
            raise DeadlineExceeded("the model had no time for it") from None
        finally:
            self._forget(entries)
        return found[0] if len(found) == 1 else _joined(found)

    def _add(self, rows: Array, top: int) -> _Waiting:
        loop = asyncio.get_running_loop()
        entry = _Waiting(rows, top, loop.create_future(), loop.time())
        self._queue.append(entry)
        self._bytes += rows.nbytes
        is_full = self._delay > 0 and sum(len(each.rows) for each in self._queue) >= self._max_batch
        if self._timer is not None and is_full:
            self._timer.cancel()
        if self._timer is None or is_full:
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
            wait = self._queue[0].since + self._delay - loop.time()
            if wait > 0 and sum(len(entry.rows) for entry in batch) < self._max_batch:
                self._timer = loop.call_later(wait, self._start)
                return
            taken = set(map(id, batch))
            self._queue = [entry for entry in self._queue if id(entry) not in taken]
            self._bytes -= sum(entry.rows.nbytes for entry in batch)
            self._free -= 1
            self._threads.submit(self._compute, batch, loop)

    def _next_batch(self) -> list[_Waiting]:
        """The oldest request, and those of its kind that fit into a batch with it."""
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
        if self._observe is not None:
            self._observe(sum(len(entry.rows) for entry in batch), time.perf_counter() - began)
        try:
            loop.call_soon_threadsafe(self._finish, batch, found)
        except RuntimeError:
            return  # the loop has ended, and with it the requests

    def _finish(self, batch: list[_Waiting], found: list[Answers | Exception]) -> None:
        self._free += 1
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
