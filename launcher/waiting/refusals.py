"""Events about pods that the cluster does not let the operator create. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.kubernetes import admission, objects
from kfp_pytorch.launcher.kubernetes.events import event_message, event_object
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.limits import Limits


def last_refusal(evidence: Evidence) -> str:
    """Return the last event's message about a pod that could not be created, or an empty string."""
    return event_message(_last_event(evidence))


def lasting(evidence: Evidence) -> str:
    """Return the last refusal where it is permanent; or an empty string."""
    message = last_refusal(evidence)
    return message if admission.is_permanent(message) else ""


def is_queued(evidence: Evidence) -> bool:
    """Return whether the job is queued: it has no pods, and needs none."""
    return evidence.kind.read_state(evidence.job).phase is Phase.QUEUED


def missing_pods(evidence: Evidence) -> bool:
    """Return whether a job has fewer pods than it needs."""
    there = len(evidence.pods if evidence.living is None else evidence.living)
    return there < max(1, evidence.kind.expected_pods(evidence.job))


@dataclass
class RefusalWatch:
    """Remembers since when the operator has been refused a pod permanently."""

    limits: Limits
    _since: float | None = None
    _past: set[tuple[str, str]] = field(default_factory=set)

    def fatal(self, evidence: Evidence, now: float) -> str:
        """Finds a refusal that has lasted longer than its grace: what it lacks may be made yet.

        Returns the refusal; empty while there is none, in the queue, and while no pod is missing:
        then it is past.
        """
        event = _version(_last_event(evidence))
        if not missing_pods(evidence):
            self._past.add(event)
        refusal = "" if is_queued(evidence) else lasting(evidence)
        if not refusal or event in self._past:
            self._since = None
            return ""
        self._since = now if self._since is None else self._since
        return refusal if now - self._since >= self.limits.refusal_grace else ""

    def reset(self) -> None:
        """Begins at 0: its end could not be seen during an outage."""
        self._since = None

    def next_deadline(self) -> float | None:
        """The time at which a refusal that lasts would become fatal, or None."""
        return None if self._since is None else self._since + self.limits.refusal_grace


def _last_event(evidence: Evidence) -> Object:
    job = objects.name(evidence.job)
    events = (
        event
        for event in reversed(evidence.events)
        if event_object(event) == job and str(event.get("reason")).startswith("FailedCreate")
    )
    return next(events, {})


def _version(event: Object) -> tuple[str, str]:
    uid, version = (objects.dig(event, "metadata", key) for key in ("uid", "resourceVersion"))
    return str(uid or ""), str(version or "")
