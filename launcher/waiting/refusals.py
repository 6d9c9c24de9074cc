"""Events about pods that the cluster does not let the operator create. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.kubernetes import admission, objects
from kfp_pytorch.launcher.kubernetes.events import event_message, event_object
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.limits import Limits


def told(evidence: Evidence) -> str:
    """Return what the operator last said of pods that it could not create; or an empty string."""
    job = objects.name(evidence.job)
    return next(
        (
            event_message(event)
            for event in reversed(evidence.events)
            if event_object(event) == job and str(event.get("reason")).startswith("FailedCreate")
        ),
        "",
    )


def lasting(evidence: Evidence) -> str:
    """Return what `told` does where no waiting mends it; or an empty string."""
    words = told(evidence)
    return words if admission.is_permanent(words) else ""


@dataclass
class RefusalWatch:
    """Remembers since when the operator has been refused the pods of a job, as no waiting mends."""

    limits: Limits
    _since: float | None = None

    def fatal(self, evidence: Evidence, now: float) -> str:
        """Finds a refusal that has lasted longer than its grace: what it lacks may be made yet.

        Args:
            evidence: What was seen of the job.
            now: The time, by the clock that all calls use.

        Returns:
            The words; empty while there is none, in the queue, and once there has been a pod:
            then it is past.
        """
        past = evidence.pods or evidence.kind.read_state(evidence.job).phase is Phase.QUEUED
        words = "" if past else lasting(evidence)
        if not words:
            self._since = None
            return ""
        self._since = now if self._since is None else self._since
        return words if now - self._since >= self.limits.refusal_grace else ""

    def reset(self) -> None:
        """Begins anew: nobody could tell that it was over."""
        self._since = None

    def next_deadline(self) -> float | None:
        """The time at which a refusal that lasts would become fatal, or None."""
        return None if self._since is None else self._since + self.limits.refusal_grace
