"""SIGTERM as a flag that all ranks agree on, at the same step."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.training.entry.rank_records import leave

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from kfp_pytorch.training.parallel.process_group import World


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    @classmethod
    def on_sigterm(cls) -> StopRequest:
        """A request that SIGTERM makes; a second SIGTERM changes nothing."""
        request = cls()

        def handle(_signal: int, _frame: FrameType | None) -> None:
            request.requested = True

        signal.signal(signal.SIGTERM, handle)
        # Whoever started this process may have had it blocked, and that is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return request

    @contextmanager
    def answered_within(self, seconds: float) -> Iterator[None]:
        """A context in which nothing is lost by leaving, and what waits may never see the request.

        While torch waits in C++, Python does not run the signal's handler.

        Args:
            seconds: How long after SIGTERM the context may last, before this process leaves.
        """
        reads, writes = socket.socketpair()
        writes.setblocking(False)
        over = threading.Event()

        def watch() -> None:
            while not self.requested:
                number = reads.recv(1)
                if not number:
                    return
                if number[0] == signal.SIGTERM:
                    break
            if not over.wait(seconds):
                leave(EXIT_TERMINATED)

        before = signal.set_wakeup_fd(writes.fileno())
        thread = threading.Thread(target=watch, name="stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            signal.set_wakeup_fd(before)
            writes.close()
            thread.join()
            reads.close()

    def wait(self, seconds: float) -> None:
        """Waits for this process itself to be asked, at most so long."""
        deadline = time.monotonic() + seconds
        while not self.requested and time.monotonic() < deadline:
            time.sleep(0.05)


class StopAgreement:
    """The same answer on all ranks to "does anybody want to stop?".

    A rank that left by itself would leave the others waiting for it. So each rank offers its
    flag at every step, and learns the common one a step later: the exchange runs while the step
    computes and costs it no time.
    """

    def __init__(self, world: World, request: StopRequest) -> None:
        self._world = world
        self._request = request
        self._flag: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def reached(self) -> bool:
        """Whether to stop here. All ranks call it at the same boundaries and get one answer."""
        if self._world.size == 1:
            return self._request.requested
        if self._collect():
            return True
        self._offer()
        return False

    def settle(self) -> bool:
        """Like `reached`, but knows of all requests made so far; waits for the other ranks."""
        if self._world.size == 1:
            return self._request.requested
        if self._collect():
            return True
        self._offer()
        return self._collect()

    def _offer(self) -> None:
        import torch
        import torch.distributed as dist

        self._flag = torch.tensor([int(self._request.requested)])
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)

    def _collect(self) -> bool:
        """The common flag that was offered last, once."""
        if self._work is None or self._flag is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._flag.item())
