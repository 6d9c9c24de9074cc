"""Which time counts for which limit. No I/O: the time comes in as a number."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.waiting.limits import Limits

RUNNING_PHASES = (Phase.RUNNING, Phase.RESTARTING)


@dataclass
class Clocks:
    """Adds up, in seconds, the time that counts for each limit.

    Time in the queue counts for the queue only; each stay there begins at 0, and so do the start
    and the active time after it. Time of running adds up over restarts and stays in the queue.

    Attributes:
        final_status: Time since the first pod ended without an end of the job; no other limit
            applies then.
    """

    limits: Limits  # the limits
    counted_to: float  # the time up to which everything is counted
    phase: Phase = Phase.UNACKNOWLEDGED  # the job's phase since then
    all_running: bool = False  # whether every pod has run since then
    deleting: bool = False  # whether the job has been terminating since then
    first_pod_ended: bool = False  # whether its first pod has ended since then
    acknowledge: float = 0.0  # time without a first condition
    queue: float = 0.0  # time of this stay in the queue
    start: float = 0.0  # time since every pod last ran, or since the last stay in the queue
    run: float = 0.0  # time of running
    active: float = 0.0  # time since the operator started the job, or resumed it
    deletion: float = 0.0  # time of terminating
    final_status: float = 0.0

    def enter(
        self,
        now: float,
        phase: Phase,
        all_running: bool,
        deleting: bool = False,
        first_pod_ended: bool = False,
    ) -> None:
        """Counts the time up to now, then continues with what is so from now on."""
        self.count(now)
        self.phase, self.all_running = phase, all_running
        self.deleting, self.first_pod_ended = deleting, first_pod_ended
        if phase is not Phase.UNACKNOWLEDGED:
            self.acknowledge = 0.0
        if phase is Phase.QUEUED:
            self.start = self.active = 0.0
        else:
            self.queue = 0.0
        if all_running and phase in RUNNING_PHASES:
            self.start = 0.0
        if not first_pod_ended:
            self.final_status = 0.0

    def add_earlier(self, in_phase: float, active: float) -> None:
        """Counts time that passed before the launcher observed the job.

        Of a job that runs, nothing is known of its pods at that time, nor of the operator while
        the job is not acknowledged: that time counts for no start.
        """
        if self.phase is Phase.QUEUED:
            self.queue += in_phase
            return
        if self.phase is Phase.STARTING:
            self.start += in_phase
        elif self.phase in RUNNING_PHASES:
            self.run += in_phase
        self.active += active

    def reset_after_outage(self, now: float) -> None:
        """Begins at 0 what others had to do who could not reach the API server up to now."""
        self.count(now)
        self.acknowledge = self.deletion = self.final_status = 0.0

    def count(self, now: float) -> None:
        """Counts the time up to now."""
        passed, self.counted_to = max(0.0, now - self.counted_to), now
        if self.deleting:
            self.deletion += passed
        if self.phase is Phase.QUEUED:
            self.queue += passed
            return
        if self.first_pod_ended:
            self.final_status += passed
        if self.phase is Phase.UNACKNOWLEDGED:
            self.acknowledge += passed
        else:
            self.active += passed
        if self.phase in RUNNING_PHASES:
            self.run += passed
        if not (self.all_running and self.phase in RUNNING_PHASES):
            self.start += passed

    def exceeded(self) -> str:
        """The name of the limit that is reached, such as `start`, or empty."""
        return next((name for name, left in self._left() if left <= 0), "")

    def next_deadline(self) -> float | None:
        """The time at which a limit will be reached if nothing changes, or None."""
        return min((self.counted_to + left for _, left in self._left()), default=None)

    def _left(self) -> list[tuple[str, float]]:
        """What is left of each limit that the time now counts for."""
        limits, left = self.limits, []
        if self.deleting:
            left.append(("deletion", limits.deletion - self.deletion))
        if self.phase is Phase.QUEUED:
            return [*left, ("queue", limits.queue - self.queue)] if limits.queue else left
        if self.first_pod_ended:
            # It ended in time: how, is for the operator to report.
            return [*left, ("final_status", limits.final_status - self.final_status)]
        if self.phase is Phase.UNACKNOWLEDGED:
            left.append(("acknowledge", limits.acknowledge - self.acknowledge))
        elif limits.active:
            left.append(("active", limits.active - self.active))
        if not (self.all_running and self.phase in RUNNING_PHASES) and limits.start:
            left.append(("start", limits.start - self.start))
        if self.phase in RUNNING_PHASES and limits.run:
            left.append(("run", limits.run - self.run))
        return left
