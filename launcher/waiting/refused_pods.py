"""Events about pods that the cluster does not let the operator create. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.kubernetes import admission, objects
from kfp_pytorch.launcher.kubernetes.events import event_message
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.waiting.evidence import Evidence


def last_refusal(evidence: Evidence) -> str:
    """Return the last event's message about a pod that could not be created, or an empty string."""
    return event_message(_last_event(evidence))


def lasting(evidence: Evidence) -> str:
    """Return the last refusal where it is permanent; or an empty string."""
    message = last_refusal(evidence)
    return message if message and admission.is_permanent(message) else ""


def is_queued(evidence: Evidence) -> bool:
    """Return whether the job is queued: it has no pods, and needs none."""
    return evidence.kind.read_state(evidence.job).phase is Phase.QUEUED


def missing_pods(evidence: Evidence) -> bool:
    """Return whether a job has fewer pods than it needs."""
    there = len(evidence.pods if evidence.living is None else evidence.living)
    return there < max(1, evidence.kind.expected_pods(evidence.job))


@dataclass
class RefusalWatch:
    """Finds refusals of pods that are missing now, not of those that were created since."""

    _past: set[tuple[str, str]] = field(default_factory=set)

    def current(self, evidence: Evidence) -> str:
        """Return the permanent refusal of a pod that is missing, or an empty string."""
        event = _version(_last_event(evidence))
        if not missing_pods(evidence):
            self._past.add(event)
        return "" if event in self._past or is_queued(evidence) else lasting(evidence)


def _last_event(evidence: Evidence) -> Object:
    job = objects.name(evidence.job)
    events = (
        event
        for event in reversed(evidence.events)
        if evidence.kind.is_about_pods(event, job)
        and str(event.get("reason")).startswith(evidence.kind.refusal_reasons)
    )
    return next(events, {})


def _version(event: Object) -> tuple[str, str]:
    uid, version = (objects.dig(event, "metadata", key) for key in ("uid", "resourceVersion"))
    return str(uid or ""), str(version or "")
