"""The model as it is served: one queue, one set of limits and counts for all protocols."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from kfp_pytorch.serving.batching import AT_ONCE, Batcher
from kfp_pytorch.serving.errors import DeadlineExceeded, NotFound, Overloaded
from kfp_pytorch.serving.explainer import Explainer, Explanation, Wish
from kfp_pytorch.serving.limits import cpu_limit
from kfp_pytorch.serving.metrics import Recorder
from kfp_pytorch.serving.predictor import Answers, Predictor
from kfp_pytorch.serving.protocol.query import Query
from kfp_pytorch.serving.speed.threads import in_own_thread
from kfp_pytorch.serving.tensors import Array

# Largest bodies that are read and answered at once. In JSON, 32 MiB of small numbers take 550 MiB
# (measured): more would not fit into the runtime's memory limit.
LARGEST_AT_ONCE = 4
# Requests for explanations, of which one is computed and the others wait.
MOST_EXPLAINING = 4
# Reading less takes less time than handing it to a thread.
_READ_AT_ONCE = 64 * 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What an administrator sets of a server."""

    max_body: int = 32 * 1024 * 1024  # bytes of the largest request
    max_waiting: int = 256  # requests in the queue
    batch_delay: float = 0.0  # seconds that a request waits for others when the model is free
    timeout: float = 60.0  # seconds until a request's deadline, where it states none
    stop_delay: float = 0.0  # seconds that it takes requests after SIGTERM
    max_connections: int = 1024  # of each protocol


class Service:
    """Answers requests of all protocols in one event loop."""

    def __init__(self, name: str, predictor: Predictor, settings: Settings) -> None:
        self.name = name
        self.predictor = predictor
        self.export = predictor.export
        self.settings = settings
        self.recorder = Recorder(name)
        self.stopping = False
        self._held = 0
        self._reading = 0
        self._explainer = Explainer(predictor)
        self._explaining = 0
        self._one_explains = threading.Lock()
        self._readers = ThreadPoolExecutor(cpu_limit(), thread_name_prefix="reader")
        self._batcher = Batcher(
            predictor.answer,
            max_batch=predictor.max_batch,
            max_waiting=settings.max_waiting,
            max_bytes=LARGEST_AT_ONCE * max(settings.max_body, 64 * 1024 * 1024),
            delay=settings.batch_delay,
            at_once=AT_ONCE[predictor.device.type],
            observe=self.recorder.batch,
        )
        self.recorder.waiting.set_function(lambda: self._batcher.waiting)

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return self.predictor.is_live and not self.stopping

    def check_name(self, name: str) -> None:
        """Raises NotFound: the model has another name."""
        if name != self.name:
            raise NotFound(f"Model with name {name} does not exist.")

    def hold(self, size: int) -> None:
        """Counts bytes of a body that is read; `release` takes them back. Raises Overloaded."""
        self._held += size
        if self._held > LARGEST_AT_ONCE * self.settings.max_body:
            raise Overloaded(f"requests of {self._held} bytes are being answered")

    def release(self, size: int) -> None:
        """Takes back what was held for a request that is answered."""
        self._held -= size

    async def answer(
        self, size: int, read: Callable[[], Query], deadline: float
    ) -> tuple[Query, Answers]:
        """Reads a request of some bytes and answers it.

        `deadline`: on the event loop's clock. Raises what `refusal` has an answer to.
        """
        # Before it is read: this takes longer than all else where load is to be shed.
        self._check_room()
        self._reading += 1
        try:
            query = await self.off_loop(size, read)
        finally:
            self._reading -= 1
        return query, await self._batcher.answer(query.parts, query.top, deadline)

    def _check_room(self) -> None:
        waiting = self._batcher.waiting + self._reading
        if waiting >= self.settings.max_waiting:
            raise Overloaded(f"{waiting} requests wait for the model")

    async def explain(
        self, size: int, read: Callable[[], tuple[list[Array], Wish]], deadline: float
    ) -> list[Explanation]:
        """Reads a request of some bytes and explains the answers to it, one request at a time.

        `deadline`: on the event loop's clock. Raises what `refusal` has an answer to.
        """
        self._explainer.check()
        if self._explaining >= MOST_EXPLAINING:
            raise Overloaded(f"{self._explaining} requests wait for explanations")
        self._explaining += 1
        over = threading.Event()
        try:
            parts, wish = await self.off_loop(size, read)
            async with asyncio.timeout_at(deadline):
                work = in_own_thread(self._explained, parts, wish, over.is_set)
                return await asyncio.wrap_future(work)
        except TimeoutError:
            raise DeadlineExceeded("the explanations took too long") from None
        finally:
            over.set()
            self._explaining -= 1

    def _explained(
        self, parts: list[Array], wish: Wish, is_over: Callable[[], bool]
    ) -> list[Explanation]:
        with self._one_explains:
            return self._explainer.explain(parts, wish, is_over)

    async def off_loop(self, size: int, work: Callable[[], T]) -> T:
        """Does work with so many bytes: with many in a thread, and the event loop goes on."""
        if size < _READ_AT_ONCE:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def deadline(self, seconds: float | None) -> float:
        """When a request that begins now must be answered, on the event loop's clock.

        `seconds`: how long its client waits, if it says so.
        """
        wait = self.settings.timeout if seconds is None else seconds
        return asyncio.get_running_loop().time() + wait
