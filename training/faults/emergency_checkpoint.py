"""What a rank does when another has gone: it saves the last step from its own memory.

Ranks that replicate the model each have all of it. So when one of them is lost, another writes a
checkpoint of the last step before it leaves, too, and the job goes on from there; without it, the
job would go back to the last checkpoint. Where ranks share a model there is nothing whole to save.

It happens in the thread that noticed: the main thread may wait for the lost rank for ever.
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
# How long the weights may take to change in a step, and the GPU to stand still after a loss, in
# seconds.
_STEP_SECONDS = 10.0
_SETTLED_AFTER = 1.0
_MOST_AHEAD = 64
# torchrun kills what is left of a node's ranks 30 seconds after one of them failed.
_SAVE_TIMEOUT = timedelta(seconds=25)
# A store whose process is frozen would not answer for ever.
_ANSWER_SECONDS = 8.0

Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class _Mark:
    """The end of a step: where the job was, and when the device has come there."""

    position: dict[str, Any]
    reached: torch.cuda.Event | None

    @property
    def is_reached(self) -> bool:
        return self.reached is None or bool(self.reached.query())  # type: ignore[no-untyped-call]


class Rescue:
    """Saves the last step when it is needed; until it is armed, and on most ranks, nothing."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._attempting = threading.Lock()
        self._marks: deque[_Mark] = deque(maxlen=_MOST_AHEAD)
        self._world: World | None = None
        self._position: Callable[[], dict[str, Any]] = dict
        self._save: Save | None = None
        self._store: TCPStore | None = None
        self._key = ""

    def arm(self, world: World, position: Callable[[], dict[str, Any]], save: Save) -> None:
        """Says how to save; all ranks do so together, when they replicate the model.

        Args:
            world: This rank.
            position: Where the job is, in plain values that are not changed later.
            save: Writes a checkpoint of a position by this rank alone.
        """
        from kfp_pytorch.training.parallel.process_group import from_main, own_store

        # One key for each start, as torchrun's store outlives the ranks.
        self._key = f"kfp-pytorch/rescue/{from_main(world, uuid.uuid4().hex)}"
        # Connected from now on: who has to look for a store that has gone looks for a long time.
        self._store = own_store(world)
        self._world, self._position, self._save = world, position, save
        self._mark()

    def disarm(self) -> None:
        """Says that the last step is none to go on from; from here on nothing is saved."""
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
            self._mark()

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
                if _answered(functools.partial(self._is_chosen, self._world, self._store)):
                    save(self._last_reached().position)
                    _answered(functools.partial(self._say_done, self._store))
                elif self._world.is_main:
                    self._await_done(self._store)
            except BaseException as error:
                LOG.warning("the last step is not saved: %s: %s", type(error).__name__, error)

    def _mark(self) -> None:
        event = None
        if self._world is not None and self._world.device.type == "cuda":
            import torch

            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._marks.append(_Mark(self._position(), event))

    def _is_chosen(self, world: World, store: TCPStore) -> bool:
        """Whether it is for this rank to save: the first of those that ask the common store."""
        from torch.distributed import DistError

        try:
            return store.add(self._key, 1) == 1
        except DistError:
            # Rank 0 had it, and is gone. The last rank is the one that watches rank 0.
            return world.rank == world.size - 1

    def _say_done(self, store: TCPStore) -> bool:
        store.set(f"{self._key}/done", "")
        return True

    def _await_done(self, store: TCPStore) -> None:
        """Keeps the store, if it is this rank's: without it another would save a second time."""
        from torch.distributed import DistError

        with contextlib.suppress(DistError):
            store.wait([f"{self._key}/done"], _SAVE_TIMEOUT)

    def _last_reached(self) -> _Mark:
        """The last step that the device has taken, when it takes no more.

        A step's update waits for the exchange of its gradients. If the lost rank is missed there,
        the device stands before the update, however far the host is ahead.
        """
        reached, since = 0, time.monotonic()
        while time.monotonic() - since < _SETTLED_AFTER:
            now = sum(mark.is_reached for mark in self._marks)
            if now == len(self._marks):
                break
            if now != reached:
                reached, since = now, time.monotonic()
            time.sleep(0.01)
        marks = [mark for mark in self._marks if mark.is_reached]
        if not marks:
            raise RuntimeError("the device has not come to the end of a step")
        return marks[-1]


def _answered(ask: Callable[[], bool]) -> bool:
    """What the common store answers; no, if it does not answer soon."""
    answers: list[bool] = []

    def answer() -> None:
        # Without a store there is nobody to say yes.
        with contextlib.suppress(RuntimeError):
            answers.append(ask())

    thread = threading.Thread(target=answer, name="rescue", daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    return answers == [True]
