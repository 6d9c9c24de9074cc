"""How long the kubelet takes to act and to report."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Delays of the kubelet, in seconds, as measured on Kubernetes 1.34.

    The back-off is that of a kubelet with ReduceDefaultCrashLoopBackOffDecay.
    """

    sync: float = 1.0  # from a container's end until the pod's phase changes, or its first restart
    crash_loop: float = 10.0  # from an end until CrashLoopBackOff is reported, if it still waits
    first_backoff: float = 1.0  # before the second restart; it doubles with each one
    longest_backoff: float = 60.0  # the longest back-off; after a run twice as long it is reset

    def before(self, restart: int) -> float:
        """Seconds from an end to a restart, counted from 1 since the last long run."""
        if restart <= 1:
            return self.sync
        return float(min(self.first_backoff * 2 ** (restart - 2), self.longest_backoff))


async def sleep(seconds: float, stopping: asyncio.Event) -> None:
    """Sleep until `stopping` is set, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopping.wait()
