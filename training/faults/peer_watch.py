"""Detects at once that the process of another rank has ended.

A rank that waits for a collective on GPUs does not learn that another one has ended: torchrun ends
those of the same node after 30 seconds, those of other nodes wait for the timeout. So each rank
also waits, in a thread, for a message that its neighbour in a ring sends only at the end. When a
process ends the system closes its connections, and the wait fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from kfp_pytorch.training.errors import Stopped
from kfp_pytorch.training.parallel.process_group import World

# The message comes at the end of training, which may be days away.
_NO_TIMEOUT = timedelta(days=3650)


@contextmanager
def watched_peers(world: World, on_lost: Callable[[int], None]) -> Iterator[None]:
    """A context in which each rank watches its neighbour; all ranks enter and leave it together.

    As each rank that ends early is missed by one, which then ends too, all ranks end. `on_lost`:
    called in a thread with the rank of the neighbour that has ended. It must end this process,
    whose main thread may wait for ever.
    """
    if world.size == 1:
        yield
        return
    group = cast("dist.ProcessGroup", dist.new_group(backend="gloo", timeout=_NO_TIMEOUT))
    watched, watcher = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def watch() -> None:
        try:
            dist.recv(torch.zeros(1), src=watched, group=group)
        except RuntimeError:
            on_lost(watched)

    def release() -> None:
        """Reports to the watcher that this rank ends well, and waits for the neighbour's report."""
        dist.send(torch.ones(1), dst=watcher, group=group)
        thread.join()

    thread = threading.Thread(target=watch, name="peer-watch", daemon=True)
    thread.start()
    try:
        yield
    except Stopped:
        release()
        raise
    # Not after an error: then the watcher has to notice.
    release()
