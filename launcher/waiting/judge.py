"""Decides when a job that has not ended is given up, and says why. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kfp_pytorch.launcher.jobs.state import JobState, Phase
from kfp_pytorch.launcher.kubernetes.objects import Object, name
from kfp_pytorch.launcher.kubernetes.pod_failures import StartupFailures
from kfp_pytorch.launcher.kubernetes.pod_status import is_terminating, pod_phase
from kfp_pytorch.launcher.runtime.printing import duration
from kfp_pytorch.launcher.waiting import refused_pods
from kfp_pytorch.launcher.waiting.clocks import RUNNING_PHASES, Clocks
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.grace import Grace
from kfp_pytorch.launcher.waiting.limits import Limits

_ENDED = ("Succeeded", "Failed")
# How long a pod may take to end once its training has, in seconds: its sidecars are stopped then.
_LAST_CONTAINERS = 60.0


class Verdict(NamedTuple):
    """Why a job is given up."""

    cause: str  # a sentence for a person
    why: str  # what that is, for the diagnosis: `failed`, `trouble` or the name of a limit


class Judge:
    """Counts the limits of one job and judges by them and by its pods.

    `failed_twice`: says that the program failed twice in the same way, or nothing.

    Attributes:
        clocks: The time that counts for each limit.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        job: Object,
        limits: Limits,
        now: float,
        failed_twice: Callable[[Evidence], str],
    ) -> None:
        self._gatherer = gatherer
        self._failed_twice = failed_twice
        self._limits = limits
        self._kind = gatherer.evidence.kind
        self._title = self._kind.title(name(job))
        self._expected = self._kind.expected_pods(job)
        self.clocks = Clocks(limits, now)
        self._startup_failures = StartupFailures(limits.pull_grace, limits.config_grace)
        self._refusals = refused_pods.RefusalWatch()
        self._refusal_grace = Grace(limits.refusal_grace)
        # Some operators do not end a job whose pod failed and is not started again.
        self._failed_pod_grace = Grace(limits.failed_pod)
        self._last_containers = Grace(_LAST_CONTAINERS)
        self._graces = (
            self._startup_failures,
            self._refusal_grace,
            self._failed_pod_grace,
            self._last_containers,
        )

    def update(self, state: JobState, now: float) -> None:
        """Counts the time up to now, then continues with what was seen of the job and its pods."""
        evidence, phase = self._gatherer.evidence, state.phase
        if phase is Phase.UNACKNOWLEDGED and (
            self._gatherer.pods() or refused_pods.last_refusal(evidence)
        ):
            # Whoever made the pods, or could not make them, has seen the job.
            phase = Phase.STARTING
        all_running = self._gatherer.running() >= self._expected
        if phase is Phase.STARTING and self.clocks.phase in RUNNING_PHASES:
            # The status of some kinds says of a job that ran only that a pod does not run now.
            phase = Phase.RUNNING if all_running else Phase.RESTARTING
        self.clocks.enter(now, phase, all_running, state.deleting, self._is_done(now))

    def first_pod_ended(self) -> bool:
        """Whether the first pod has ended; one that a queue takes away is terminating."""
        pod = self._gatherer.pod(self._gatherer.first_pod)
        return pod_phase(pod) in _ENDED and not is_terminating(pod)

    def _is_done(self, now: float) -> bool:
        """Whether the first pod has ended, or training has ended in it and the pod is about to."""
        trained = [self._gatherer.first_pod] if self._gatherer.first_pod_succeeded() else []
        late = self._last_containers.exceeded(trained, now)
        return self.first_pod_ended() or bool(trained and not late)

    @property
    def all_run(self) -> bool:
        """Whether the job is running with all its pods."""
        return self.clocks.all_running and self.clocks.phase in RUNNING_PHASES

    def reset_after_outage(self, now: float) -> None:
        """Begins at 0 what the operator and the kubelets could not do during an outage."""
        self.clocks.reset_after_outage(now)
        for grace in self._graces:
            grace.reset()

    def verdict(self, now: float) -> Verdict | None:
        """Why the job is given up, by what was seen of it; or None."""
        evidence = self._gatherer.evidence
        failure = self._startup_failures.fatal(self._gatherer.pods(), now)
        if failure is not None:
            return Verdict(str(failure), "trouble")
        recreated = self._gatherer.recreated
        limit = self._kind.restart_limit(evidence.job)
        if 0 < limit <= recreated:
            return Verdict(
                f"the pods of {self._title} failed and were started again {recreated} times, "
                f"which is {self._kind.restart_limit_input} ({limit})",
                "trouble",
            )
        if repeated := self._failed_twice(evidence):
            return Verdict(repeated, "trouble")
        refusal = self._refusals.current(evidence)
        if self._refusal_grace.exceeded([refusal] if refusal else [], now):
            return Verdict(f"{self._title} gets {self._pods_made()}: {refusal}", "trouble")
        failed = self._failed_pod_grace.exceeded(self._gatherer.failed_pods(), now)
        # The success of the first pod is the job's, whatever the other pods did.
        if failed and not self._gatherer.first_pod_succeeded():
            return Verdict(
                f"{self._title} did not end: {failed} failed and is not started again, but the "
                f"{self._kind.operator} did not act on it in {duration(self._limits.failed_pod)}",
                "failed",
            )
        self.clocks.count(now)
        self.clocks.first_pod_ended = self._is_done(now)
        exceeded = self.clocks.exceeded()
        return Verdict(self._exceeded(exceeded), exceeded) if exceeded else None

    def next_deadline(self) -> float | None:
        """The time at which the verdict may change though nothing else does, or None."""
        parts = (self.clocks, *self._graces)
        return min((at for part in parts if (at := part.next_deadline()) is not None), default=None)

    def _pods_made(self) -> str:
        made = len(self._gatherer.pods())
        return f"only {made} of its {self._expected} pods" if made else "no pods"

    def _exceeded(self, limit: str) -> str:
        job, limits, operator = self._title, self._limits, self._kind.operator
        why, unread = self._gatherer.reason_not_running(), self._gatherer.unread_events
        running = self._gatherer.running()
        ran = f"; {running} of {self._expected} pods ran" if self._expected else ""
        if limit == "start" and self._expected and not self._gatherer.pods():
            ran = f"; none of its {self._expected} pods was made"
            why = why or unread or f"nothing says why, so look at the {operator}'s log"
        tail = f": {why}" if why else ""
        return {
            "acknowledge": f"{job} was not acknowledged by the {operator} within "
            f"{duration(limits.acknowledge)}: it has neither a condition nor a pod"
            + (f"; {unread}" if unread else ""),
            "queue": f"{job} was still queued after {duration(limits.queue)} (queue_timeout){tail}",
            "start": f"{job} did not start within {duration(limits.start)} (start_timeout)"
            f"{ran}{tail}",
            "run": f"{job} still ran after {duration(limits.run)} (timeout){tail}",
            "active": f"{job} was still active after {duration(limits.active)} "
            f"(active_deadline){tail}",
            "deletion": f"{job} was deleted while it ran, and has not gone for "
            f"{duration(limits.deletion)}{tail}",
            "final_status": f"{self._gatherer.first_pod} ended {duration(limits.final_status)} "
            f"ago, but the {operator} has not said how {job} ended",
        }[limit]
