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
from kfp_pytorch.training.entry.rank_records import exit_now

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
        """A request that is set by SIGTERM; a second SIGTERM changes nothing."""
        request = cls()

        def handle(_signal: int, _frame: FrameType | None) -> None:
            request.requested = True

        signal.signal(signal.SIGTERM, handle)
        # The parent process may have blocked it, and that is inherited.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return request

    @contextmanager
    def answered_within(self, seconds: float) -> Iterator[None]:
        """A context in which this process may end at once, as nothing is lost.

        While torch waits in C++, Python does not run the signal's handler, so a thread waits, and
        ends this process so many seconds after SIGTERM.
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
                exit_now(EXIT_TERMINATED)

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
        """Waits for the request, at most so long."""
        deadline = time.monotonic() + seconds
        while not self.requested and time.monotonic() < deadline:
            time.sleep(0.05)


class StopAgreement:
    """The same answer on all ranks to whether one of them was asked to stop.

    A rank that stopped alone would leave the others waiting for it. So each rank sends its flag at
    every step, and receives the common one a step later: the exchange runs while the step computes
    and takes no time of it.
    """

    def __init__(self, world: World, request: StopRequest) -> None:
        self._world = world
        self._request = request
        self._flag: torch.Tensor | None = None
        self._work: dist.Work | None = None

    def reached(self) -> bool:
        """Whether to stop here. All ranks call it between the same steps and get one answer."""
        if self._world.size == 1:
            return self._request.requested
        if self._receive():
            return True
        self._send()
        return False

    def settle(self) -> bool:
        """Like `reached`, but with all requests made so far; waits for the other ranks."""
        if self._world.size == 1:
            return self._request.requested
        if self._receive():
            return True
        self._send()
        return self._receive()

    def _send(self) -> None:
        import torch
        import torch.distributed as dist

        self._flag = torch.tensor([int(self._request.requested)])
        self._work = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)

    def _receive(self) -> bool:
        """The common flag that was sent last, once."""
        if self._work is None or self._flag is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._flag.item())
