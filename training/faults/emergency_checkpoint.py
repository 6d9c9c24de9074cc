"""Saves the last step from the memory of one rank when another rank is lost.

Ranks that replicate the model each have all of it. So when one of them is lost, another writes a
checkpoint of the last step before it ends, too, and the job resumes from there instead of from the
last checkpoint. Where ranks share a model no rank has all of it, and nothing is saved.

It happens in the thread that noticed the loss: the main thread may wait for the lost rank for ever.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from kfp_pytorch.training.parallel.process_group import World

LOG = logging.getLogger("kfp_pytorch.training")
# How long the weights may change in a step, and how long the GPU must make no progress after a
# loss until it is known to make none, in seconds.
_STEP_SECONDS = 10.0
_SETTLED_AFTER = 1.0
_MOST_AHEAD = 64
# torchrun kills the other ranks of a node 30 seconds after one of them failed.
_SAVE_TIMEOUT = timedelta(seconds=25)
# A store whose process is frozen does not answer at all.
_ANSWER_SECONDS = 8.0

Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class _StepEnd:
    """The end of a step: the position of the job, and an event that the device reaches there."""

    position: dict[str, Any]
    event: torch.cuda.Event | None

    @property
    def is_reached(self) -> bool:
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]


class EmergencySave:
    """Saves the last step when that is needed; does nothing until it is armed."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._attempting = threading.Lock()
        self._ends: deque[_StepEnd] = deque(maxlen=_MOST_AHEAD)
        self._world: World | None = None
        self._position: Callable[[], dict[str, Any]] = dict
        self._save: Save | None = None
        self._store: TCPStore | None = None
        self._key = ""

    def arm(self, world: World, position: Callable[[], dict[str, Any]], save: Save) -> None:
        """Sets how to save; all ranks do so together, when they replicate the model."""
        from kfp_pytorch.training.parallel.process_group import broadcast_from_main, own_store

        # One key for each start, as torchrun's store outlives the ranks.
        key = broadcast_from_main(world, uuid.uuid4().hex)
        self._key = f"kfp-pytorch/rescue/{key}"
        # Connected now: connecting to a store that is gone takes long.
        self._store = own_store(world)
        self._world, self._position, self._save = world, position, save
        self._record()

    def disarm(self) -> None:
        """From here on nothing is saved: the last step must not be resumed from."""
        self._save = None

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A context in which weights, optimizer and position change together."""
        if self._save is None:
            yield
            return
        with self._changing:
            try:
                yield
            except BaseException:
                # Some weights may have changed, and others not.
                self._save = None
                raise
            self._record()

    def attempt(self) -> None:
        """Saves the last step, if no other rank does, and returns when that is done.

        Any thread may call it, at any time; it never raises.
        """
        with self._attempting:
            save, self._save = self._save, None
            if save is None or self._world is None or self._store is None:
                return
            # It is never released: from here on nothing changes any more.
            if not self._changing.acquire(timeout=_STEP_SECONDS):
                LOG.warning("the last step is not saved: it has not ended")
                return
            try:
                if _answers_yes(functools.partial(self._is_chosen, self._world, self._store)):
                    save(self._last_reached().position)
                    _answers_yes(functools.partial(self._set_done, self._store))
                elif self._world.is_main:
                    self._wait_until_done(self._store)
            except BaseException as error:
                LOG.warning("the last step is not saved: %s: %s", type(error).__name__, error)

    def _record(self) -> None:
        event = None
        if self._world is not None and self._world.device.type == "cuda":
            import torch

            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._ends.append(_StepEnd(self._position(), event))

    def _is_chosen(self, world: World, store: TCPStore) -> bool:
        """Whether this rank is the one to save: the first that asks the common store."""
        from torch.distributed import DistError

        try:
            return store.add(self._key, 1) == 1
        except DistError:
            # Rank 0 had the store, and is lost. The last rank is the one that watches rank 0.
            return world.rank == world.size - 1

    def _set_done(self, store: TCPStore) -> bool:
        store.set(f"{self._key}/done", "")
        return True

    def _wait_until_done(self, store: TCPStore) -> None:
        """Keeps the store of this rank open: without it another rank would save a second time."""
        from torch.distributed import DistError

        with contextlib.suppress(DistError):
            store.wait([f"{self._key}/done"], _SAVE_TIMEOUT)

    def _last_reached(self) -> _StepEnd:
        """The last step that the device has ended, when it makes no more progress.

        A step's update waits for the exchange of its gradients. If the lost rank is missing there,
        the device stops before the update, however far the host is ahead.
        """
        reached, since = 0, time.monotonic()
        while time.monotonic() - since < _SETTLED_AFTER:
            now = sum(end.is_reached for end in self._ends)
            if now == len(self._ends):
                break
            if now != reached:
                reached, since = now, time.monotonic()
            time.sleep(0.01)
        ends = [end for end in self._ends if end.is_reached]
        if not ends:
            raise RuntimeError("the device has not come to the end of a step")
        return ends[-1]


def _answers_yes(ask: Callable[[], bool]) -> bool:
    """The answer of the common store; no, if it does not answer soon."""
    answers: list[bool] = []

    def answer() -> None:
        # A store that is gone gives no answer.
        with contextlib.suppress(RuntimeError):
            answers.append(ask())

    thread = threading.Thread(target=answer, name="emergency-save", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return answers == [True]
