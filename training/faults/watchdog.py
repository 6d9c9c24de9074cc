"""Finds a rank that hangs, and says where.

A rank that hangs makes all others wait for it in the next exchange, until that times out with a
word about the exchange and none about the cause. So each rank says how far it is, a thread looks
whether it still moves, and tells the others through the store that ranks met at. If nothing moves
for too long, the rank that is furthest behind is the one that hangs: it ends itself, with the place
where its main thread stands as the traceback. If it cannot even do that, the others do: they know
it by its thread, which tells nothing any more, wherever the rank was.
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

# How long a rank that finds itself hanging is given to say so itself.
_GRACE_SECONDS = 5.0
# Between two looks at the ranks, in seconds.
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
_WAITS = ", which waits there for the others: one that is frozen cannot say so"
WAITING_FOR_DATA, COMPUTING, EVALUATING = range(3)
_NAMES = {WAITING_FOR_DATA: "waiting for data", COMPUTING: "computing", EVALUATING: "evaluating"}


class Place(NamedTuple):
    """How far a rank is; a rank that is behind has the smaller place.

    Attributes:
        step: The step that it is at.
        phase: What it does there.
        batch: Of an evaluation, how many batches are done.
    """

    step: int
    phase: int
    batch: int = 0

    def __str__(self) -> str:
        return f"at step {self.step}, {_NAMES[self.phase]}"


class _Words(NamedTuple):
    """What a rank tells the others.

    Attributes:
        place: How far it is; None where it does what may take any time.
        looks: How often its thread has looked.
    """

    place: Place | None
    looks: int


class Heartbeat:
    """How far this rank is, as the training loop says and the watchdog reads.

    Attributes:
        place: Where it is; None while it does what may take any time, such as compiling.
    """

    def __init__(self) -> None:
        self.place: Place | None = None
        self._warm = False

    def waiting(self, step: int) -> None:
        """Says that a step waits for its data."""
        self.place = Place(step, WAITING_FOR_DATA) if self._warm else None

    def computing(self, step: int) -> None:
        """Says that a step is computed. The first one may compile, and take any time."""
        self.place = Place(step, COMPUTING) if self._warm else None
        self._warm = True

    def evaluating(self, step: int, batch: int) -> None:
        """Says that some batches of an evaluation are done."""
        self.place = Place(step, EVALUATING, batch)

    def rest(self) -> None:
        """Says that what comes may take any time."""
        self.place = None


@contextlib.contextmanager
def watched(
    heartbeat: Heartbeat, world: World, seconds: float, on_hang: Callable[[RankHungError], None]
) -> Iterator[None]:
    """A context in which a rank that hangs is found; all ranks are in it together.

    Args:
        heartbeat: How far this rank is.
        world: This rank.
        seconds: How long it may stand still; 0 watches nothing.
        on_hang: Called in a thread with what to tell. It must end this process.
    """
    if not seconds:
        yield
        return
    watchdog = Watchdog(heartbeat, world, seconds, on_hang)
    try:
        yield
    finally:
        watchdog.close()


class Watchdog:
    """The thread that looks; see the module."""

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
        self._looks = 0
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
        # Looks are counted rather than time, in which this process may have been frozen as a whole.
        before, silent = None, 0
        while not self._closed.wait(self._interval):
            place = self._heartbeat.place
            silent = silent + 1 if place is not None and place is before else 0
            before = place
            self._tell()
            if place is not None and silent * self._interval >= self._seconds:
                self._judge(place)

    def _judge(self, place: Place) -> None:
        """Ends this process: as the one that hangs, or as one that waits for it."""
        told = self._ask()
        stands = _traceback_of(self._main)
        waits = _is_exchange(stands)
        other = _behind(told, place)
        # A rank that waits for another gives that the time to say so, and to be missed.
        if (other or waits) and not self._give_time(place):
            return
        if waits and not other:
            other = _frozen(told, self._ask())
        if other:
            what = (
                f"{other} and cannot say why; this rank has waited for it for {self._seconds:g} "
                f"seconds {place}"
            )
        else:
            what = (
                f"no progress for {self._seconds:g} seconds {place}; the traceback is where this "
                f"rank stands{_WAITS if waits else ''}; if it only needs longer, raise "
                "--rank-timeout"
            )
        self._on_hang(RankHungError(what).with_traceback(stands))

    def _give_time(self, place: Place) -> bool:
        """Waits for others to say something; whether this rank still stands where it did then."""
        # Twice what every rank tells in, so that one that tells nothing is known.
        grace = max(_GRACE_SECONDS, 2 * self._interval)
        until = time.monotonic() + grace
        while time.monotonic() < until:
            if self._closed.wait(self._interval) or self._heartbeat.place is not place:
                return False
            self._tell()
        return True

    def _tell(self) -> None:
        self._looks += 1
        if self._store is not None:
            with contextlib.suppress(dist.DistError):
                words = json.dumps([self._heartbeat.place, self._looks])
                self._store.set(_key(self._world.rank), words)

    def _ask(self) -> dict[int, _Words]:
        """What each rank told last."""
        told: dict[int, _Words] = {}
        if self._store is None:
            return told
        with contextlib.suppress(dist.DistError):
            for rank in range(self._world.size):
                if self._store.check([_key(rank)]):
                    place, looks = json.loads(self._store.get(_key(rank)))
                    told[rank] = _Words(Place(*place) if place else None, looks)
        return told


def _behind(told: dict[int, _Words], place: Place) -> str:
    """Says which rank is the furthest behind this place; nothing where none is."""
    places = {rank: words.place for rank, words in told.items() if words.place is not None}
    rank, behind = min(places.items(), key=lambda item: item[1], default=(-1, place))
    return f"rank {rank} makes no progress {behind}" if behind < place else ""


def _frozen(before: dict[int, _Words], now: dict[int, _Words]) -> str:
    """Says which rank has told nothing in the meantime, not even that it looks."""
    silent = [rank for rank, words in before.items() if now.get(rank) == words]
    if not silent:
        return ""
    return f"rank {silent[0]} makes no progress {before[silent[0]].place or 'any more'}"


def _key(rank: int) -> str:
    return f"kfp-pytorch/heartbeat/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{rank}"


def _traceback_of(thread: int | None) -> TracebackType | None:
    """Where a thread stands, in the form of a traceback."""
    frame = sys._current_frames().get(thread or 0)
    found: TracebackType | None = None
    while frame is not None:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return found


def _is_exchange(stands: TracebackType | None) -> bool:
    """Whether a thread stands where ranks wait for each other."""
    while stands is not None and stands.tb_next is not None:
        stands = stands.tb_next
    module = str(stands.tb_frame.f_globals.get("__name__")) if stands is not None else ""
    return module.startswith(_EXCHANGES)
