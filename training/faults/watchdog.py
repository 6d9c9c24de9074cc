"""Finds a rank that hangs, and where.

A rank that hangs makes all others wait in the next exchange, until that times out with an error
that does not name the cause. So each rank records its progress, a thread checks it, and sends it to
the other ranks through the store of the rendezvous. If nothing progresses for too long, the rank
that is furthest behind is the one that hangs: it ends itself, with the traceback of its main
thread. If it cannot even do that, the others end and name it: its thread sends nothing any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

import torch.distributed as dist

from kfp_pytorch.training.errors import RankHungError
from kfp_pytorch.training.parallel.process_group import World, own_store

# How long a rank that hangs has to end itself.
_GRACE_SECONDS = 5.0
# Between two checks, in seconds.
_MOST_INTERVAL = 10.0
# Where ranks wait for each other: the modules that exchange, or read what was exchanged.
_EXCHANGES = (
    "torch.distributed",
    "torch.autograd",
    "kfp_pytorch.training.faults.nonfinite_steps",
    "kfp_pytorch.training.faults.stopping",
    "kfp_pytorch.training.parallel.process_group",
    "kfp_pytorch.training.telemetry.metrics",
)
_WAITS = ", which waits there for the others: one that is frozen cannot report it"
WAITING_FOR_DATA, COMPUTING, EVALUATING = range(3)
_NAMES = {WAITING_FOR_DATA: "waiting for data", COMPUTING: "computing", EVALUATING: "evaluating"}


class Position(NamedTuple):
    """How far a rank is; a rank that is behind has the smaller position."""

    step: int  # the step that it is at
    phase: int  # what it does there
    batch: int = 0  # the batches of an evaluation that are done

    def __str__(self) -> str:
        return f"at step {self.step}, {_NAMES[self.phase]}"


class _Status(NamedTuple):
    """What a rank sends: its position, or None while it is idle, and the number of its checks."""

    position: Position | None
    checks: int


class Heartbeat:
    """How far this rank is, written by the training loop and read by the watchdog."""

    def __init__(self) -> None:
        # None while it does what may take any time, such as compiling.
        self.position: Position | None = None
        self._warm = False

    def waiting(self, step: int) -> None:
        """A step waits for its data."""
        self.position = Position(step, WAITING_FOR_DATA) if self._warm else None

    def computing(self, step: int) -> None:
        """A step is computed. The first one may compile, and take any time."""
        self.position = Position(step, COMPUTING) if self._warm else None
        self._warm = True

    def evaluating(self, step: int, batch: int) -> None:
        """So many batches of an evaluation are done."""
        self.position = Position(step, EVALUATING, batch)

    def idle(self) -> None:
        """What follows may take any time."""
        self.position = None


@contextlib.contextmanager
def watched(
    heartbeat: Heartbeat, world: World, seconds: float, on_hang: Callable[[RankHungError], None]
) -> Iterator[None]:
    """A context in which a rank that hangs is found; `on_hang` must end this process."""
    if not seconds:
        yield
        return
    watchdog = Watchdog(heartbeat, world, seconds, on_hang)
    try:
        yield
    finally:
        watchdog.close()


class Watchdog:
    """The thread that checks; see the module."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        world: World,
        seconds: float,
        on_hang: Callable[[RankHungError], None],
    ) -> None:
        """Starts to watch; see `watched`."""
        self._heartbeat = heartbeat
        self._world = world
        self._seconds = seconds
        self._interval = min(seconds / 10, _MOST_INTERVAL)
        self._checks = 0
        self._on_hang = on_hang
        self._store = own_store(world)
        self._main = threading.main_thread().ident
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends watching."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        # Checks are counted, not time: this process as a whole may have been frozen.
        before, unchanged = None, 0
        while not self._closed.wait(self._interval):
            position = self._heartbeat.position
            unchanged = unchanged + 1 if position is not None and position is before else 0
            before = position
            self._send()
            if position is not None and unchanged * self._interval >= self._seconds:
                self._end(position)

    def _end(self, position: Position) -> None:
        """Ends this process: as the one that hangs, or as one that waits for it."""
        received = self._receive()
        traceback = _traceback_of(self._main)
        waits = _is_exchange(traceback)
        other = _behind(received, position)
        # A rank that waits for another gives that rank the time to end first.
        if (other or waits) and not self._wait_for_others(position):
            return
        if waits and not other:
            other = _frozen(received, self._receive())
        if other:
            what = (
                f"{other} and cannot say why; this rank has waited for it for {self._seconds:g} "
                f"seconds {position}"
            )
        else:
            what = (
                f"no progress for {self._seconds:g} seconds {position}; the traceback is where "
                f"this rank stands{_WAITS if waits else ''}; if it only needs longer, raise "
                "--rank-timeout"
            )
        self._on_hang(RankHungError(what).with_traceback(traceback))

    def _wait_for_others(self, position: Position) -> bool:
        """Waits for others to end; whether this rank is still at the same position then."""
        # Twice the interval of every rank, so that one that sends nothing is known.
        deadline = time.monotonic() + max(_GRACE_SECONDS, 2 * self._interval)
        while time.monotonic() < deadline:
            if self._closed.wait(self._interval) or self._heartbeat.position is not position:
                return False
            self._send()
        return True

    def _send(self) -> None:
        self._checks += 1
        if self._store is not None:
            with contextlib.suppress(dist.DistError):
                status = json.dumps([self._heartbeat.position, self._checks])
                self._store.set(_key(self._world.rank), status)

    def _receive(self) -> dict[int, _Status]:
        """What each rank sent last."""
        received: dict[int, _Status] = {}
        if self._store is None:
            return received
        with contextlib.suppress(dist.DistError):
            for rank in range(self._world.size):
                if self._store.check([_key(rank)]):
                    position, checks = json.loads(self._store.get(_key(rank)))
                    received[rank] = _Status(Position(*position) if position else None, checks)
        return received


def _behind(received: dict[int, _Status], position: Position) -> str:
    """Which rank is the furthest behind this position; empty where none is."""
    others = {rank: each.position for rank, each in received.items() if each.position is not None}
    rank, behind = min(others.items(), key=lambda item: item[1], default=(-1, position))
    return f"rank {rank} makes no progress {behind}" if behind < position else ""


def _frozen(before: dict[int, _Status], now: dict[int, _Status]) -> str:
    """Which rank has sent nothing in the meantime, not even the number of its checks."""
    silent = [rank for rank, status in before.items() if now.get(rank) == status]
    if not silent:
        return ""
    return f"rank {silent[0]} makes no progress {before[silent[0]].position or 'any more'}"


def _key(rank: int) -> str:
    return f"kfp-pytorch/heartbeat/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"


def _traceback_of(thread: int | None) -> TracebackType | None:
    """The current stack of a thread, in the form of a traceback."""
    frame = sys._current_frames().get(thread or 0)
    found: TracebackType | None = None
    while frame is not None:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return found


def _is_exchange(traceback: TracebackType | None) -> bool:
    """Whether a thread is where ranks wait for each other."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    module = str(traceback.tb_frame.f_globals.get("__name__")) if traceback is not None else ""
    return module.startswith(_EXCHANGES)
