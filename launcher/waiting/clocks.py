"""Which time counts for which limit. No I/O: the time comes in as a number."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.waiting.limits import Limits

_RUNS = (Phase.RUNNING, Phase.RESTARTING)


@dataclass
class Clocks:
    """Adds up, in seconds, what each limit is about.

    Time in the queue counts for nothing else; each stay there begins anew, and so does the start
    after it. Time of running adds up over restarts and stays in the queue.

    Attributes:
        limits: The limits.
        mark: The time up to which everything is counted.
        phase: The job's phase since then.
        whole: Whether every pod has run since then.
        deleting: Whether the job has been being deleted since then.
        over: Whether its first pod has ended since then.
        acknowledge: Time without a first condition.
        queue: Time of this stay in the queue.
        start: Time since every pod last ran, or since the last stay in the queue.
        run: Time of running.
        deletion: Time of being deleted.
        settle: Time that the first pod has ended and the job has not; none but this is over then.
    """

    limits: Limits
    mark: float
    phase: Phase = Phase.UNACKNOWLEDGED
    whole: bool = False
    deleting: bool = False
    over: bool = False
    acknowledge: float = 0.0
    queue: float = 0.0
    start: float = 0.0
    run: float = 0.0
    deletion: float = 0.0
    settle: float = 0.0

    def set(
        self, now: float, phase: Phase, whole: bool, deleting: bool = False, over: bool = False
    ) -> None:
        """Counts the time up to now, then goes on in this phase.

        Args:
            now: The time, by the clock that all calls use.
            phase: The job's phase from now on.
            whole: Whether every pod runs, or has run, from now on.
            deleting: Whether the job is being deleted from now on.
            over: Whether its first pod has ended from now on.
        """
        self.count(now)
        self.phase, self.whole, self.deleting, self.over = phase, whole, deleting, over
        if phase is not Phase.UNACKNOWLEDGED:
            self.acknowledge = 0.0
        if phase is Phase.QUEUED:
            self.start = 0.0
        else:
            self.queue = 0.0
        if whole and phase in _RUNS:
            self.start = 0.0
        if not over:
            self.settle = 0.0

    def credit(self, passed: float) -> None:
        """Counts time that the job had been in its phase before anybody looked.

        Of a job that runs, nothing is known of its pods at that time, nor is anything of the
        operator's while the job is not acknowledged: that time counts for no start.

        Args:
            passed: The time in seconds.
        """
        if self.phase is Phase.QUEUED:
            self.queue += passed
        elif self.phase is Phase.STARTING:
            self.start += passed
        elif self.phase in _RUNS:
            self.run += passed

    def forgive(self, now: float) -> None:
        """Begins anew what others had to do, who could not reach the server up to now.

        Args:
            now: The time, by the clock that all calls use.
        """
        self.count(now)
        self.acknowledge = self.deletion = self.settle = 0.0

    def count(self, now: float) -> None:
        """Counts the time up to now."""
        passed, self.mark = max(0.0, now - self.mark), now
        if self.deleting:
            self.deletion += passed
        if self.phase is Phase.QUEUED:
            self.queue += passed
            return
        if self.over:
            self.settle += passed
        if self.phase is Phase.UNACKNOWLEDGED:
            self.acknowledge += passed
        if self.phase in _RUNS:
            self.run += passed
        if not (self.whole and self.phase in _RUNS):
            self.start += passed

    def exceeded(self) -> str:
        """The name of the limit that is over, such as `start`, or empty."""
        return next((name for name, left in self._left() if left <= 0), "")

    def next_deadline(self) -> float | None:
        """The time at which a limit will be over if nothing changes, or None."""
        return min((self.mark + left for _, left in self._left()), default=None)

    def _left(self) -> list[tuple[str, float]]:
        """What is left of each limit that the time now counts for."""
        limits, left = self.limits, []
        if self.deleting:
            left.append(("deletion", limits.deletion - self.deletion))
        if self.phase is Phase.QUEUED:
            return [*left, ("queue", limits.queue - self.queue)] if limits.queue else left
        if self.over:
            # It ended in time: how, is for the operator to tell.
            return [*left, ("settle", limits.settle - self.settle)]
        if self.phase is Phase.UNACKNOWLEDGED:
            left.append(("acknowledge", limits.acknowledge - self.acknowledge))
        if not (self.whole and self.phase in _RUNS) and limits.start:
            left.append(("start", limits.start - self.start))
        if self.phase in _RUNS and limits.run:
            left.append(("run", limits.run - self.run))
        return left
