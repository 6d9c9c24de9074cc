"""Notices at once that another rank has gone.

A rank that waits for a collective on GPUs does not learn that another one died: torchrun ends
those of the same node after 30 seconds, those of other nodes wait for the time-out. So each rank
also waits, in a thread, for a word that its neighbour in a ring says only at the end. When a
process dies the system closes its connections, and the wait fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from kfp_pytorch.training.distributed import World

# The word comes at the end of training, which may be far away.
_NO_TIMEOUT = timedelta(days=3650)


class PeerWatch:
    """Watches this rank's neighbour. As each rank that leaves is missed by one, all leave."""

    def __init__(self, world: World, on_lost: Callable[[int], None]) -> None:
        """Starts to watch; all ranks do so together.

        Args:
            world: This rank among at least two.
            on_lost: Called in a thread with the neighbour's rank if it has gone. It must end
                this process, whose main thread may wait for ever.
        """
        group = dist.new_group(backend="gloo", timeout=_NO_TIMEOUT)
        self._group = cast("dist.ProcessGroup", group)
        self._watched = (world.rank + 1) % world.size
        self._watcher = (world.rank - 1) % world.size
        self._on_lost = on_lost
        self._thread = threading.Thread(target=self._watch, name="peer-watch", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Says that this rank ends well, and waits until its neighbour says so, too."""
        dist.send(torch.ones(1), dst=self._watcher, group=self._group)
        self._thread.join()

    def _watch(self) -> None:
        try:
            dist.recv(torch.zeros(1), src=self._watched, group=self._group)
        except RuntimeError:
            self._on_lost(self._watched)
