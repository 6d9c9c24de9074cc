"""The threads that torch computes with on a CPU: one, where several are hardly faster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import ParamSpec, TypeVar

import torch

# Several threads must be so many times as fast as one: they compete with the server's own thread.
_WORTH = 1.3
# Calls with each number at the start: fewer where they take longer than so many seconds.
_FEWEST_CALLS, _MOST_CALLS, _SECONDS = 2, 5, 1.0
# Where one is chosen, several are tried after so many seconds, then after twice as many, and so on.
_AGAIN_SECONDS = 1.0
# They are compared with work of the same size that was done so many times with one; the time of so
# many sizes is kept.
_TIMES, _MOST_SIZES = 3, 256

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("kserve")


class Threads:
    """Chooses between one thread and as many as torch has. Safe to use from several threads.

    Threads wait for each other whenever another program takes a CPU, and other containers may start
    with this one. So several have a chance again while it serves.
    """

    def __init__(self) -> None:
        self._several = self._chosen = torch.get_num_threads()
        # Of work of a size with one thread: how often it was done, and the least seconds.
        self._done: dict[int, tuple[int, float]] = {}
        self._wait = _AGAIN_SECONDS
        self._again = inf  # when several are tried; never, where they are chosen

    def choose(self, work: Callable[[], object]) -> int:
        """Measures some work with one thread and with several. Returns and sets the number."""
        if self._several == 1:
            return 1
        taken: dict[int, list[float]] = {self._several: [], 1: []}
        until = time.perf_counter() + _SECONDS
        for count in range(_MOST_CALLS):
            if count >= _FEWEST_CALLS and time.perf_counter() > until:
                break
            for threads, seconds in taken.items():
                torch.set_num_threads(threads)
                began = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - began)
        if min(taken[1]) <= _WORTH * min(taken[self._several]):
            self._chosen, self._again = 1, time.perf_counter() + self._wait
        torch.set_num_threads(self._chosen)
        return self._chosen

    def run(self, size: int, work: Callable[[], T]) -> T:
        """Does work with the number that was chosen, or tries several. Work of a size is alike."""
        times, fastest = self._done.get(size, (0, inf))
        began = time.perf_counter()
        is_try = times >= _TIMES and began > self._again
        # A thread of Python's has a number of its own.
        torch.set_num_threads(self._several if is_try else self._chosen)
        found = work()
        seconds = time.perf_counter() - began
        if is_try:
            self._judge(fastest > _WORTH * seconds)
        elif self._chosen == 1 and (times or len(self._done) < _MOST_SIZES):
            self._done[size] = times + 1, min(seconds, fastest)
        return found

    def _judge(self, is_worth: bool) -> None:
        if is_worth:
            self._chosen, self._again = self._several, inf
            logger.info("torch uses %s threads in place of one", self._several)
        else:
            self._wait *= 2
            self._again = time.perf_counter() + self._wait


def in_own_thread(work: Callable[P, T], *given: P.args, **options: P.kwargs) -> Future[T]:
    """Does work that computes in a thread that ends with it.

    OpenMP keeps threads for each thread that computed. Are there more of them than CPUs, they sleep
    whenever they wait for each other, and a model is slower for good.
    """
    thread = ThreadPoolExecutor(1)
    try:
        return thread.submit(work, *given, **options)
    finally:
        thread.shutdown(wait=False)
