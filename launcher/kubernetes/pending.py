"""Why a job does not run yet, as scheduler, queue and autoscaler report it. No I/O.

Kueue reports its reasons on the job's Workload, named after the kind, the job and a hash
(pkg/controller/jobframework). Volcano makes a PodGroup of the job's own name, and no pod is created
before that is admitted. The cluster autoscaler reports on pods, with events of type Normal.
"""

from __future__ import annotations

from collections.abc import Iterable

from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.events import (
    about,
    autoscaler_message,
    event_message,
    event_object,
)
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import is_running_or_ended, reason_not_running

WORKLOAD = "Workload"
# The reason of Kueue's event about a job that it made a Workload of.
_MADE = "CreatedWorkload"
# The kubelet's reasons that explain nothing; only events do.
_UNSPECIFIC = ("ContainerCreating", "PodInitializing")
# Normal events that explain why something waits.
_EXPLAINING = frozenset({"Pending", "Preempted", "Suspended", "Stopped", "Inadmissible"})


def is_workload(event: Object, prefix: str) -> bool:
    """Whether an event is about a Workload of Kueue whose name begins so."""
    kind = objects.dig(about(event), "kind")
    return kind == WORKLOAD and event_object(event).startswith(prefix)


def has_workload(events: Iterable[Object]) -> bool:
    """Whether events tell of a Workload that Kueue made: its own, or the one about the job."""
    return any(
        objects.dig(about(event), "kind") == WORKLOAD or event.get("reason") == _MADE
        for event in events
    )


def reason(pods: Iterable[Object], events: list[Object]) -> str:
    """Return why pods do not run yet, or do not exist yet.

    Returns the cluster's message with the name of the first pod that waits; or an empty string.
    """
    stuck = [pod for pod in pods if not is_running_or_ended(pod)]
    for pod in stuck:
        why = reason_not_running(pod)
        if why in _UNSPECIFIC:
            why = next(filter(None, (_of(event, pod) for event in reversed(events))), why)
        if why:
            more = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
            scaling = autoscaler_message(events)
            return f"{objects.name(pod)}{more}: {why}" + (f"; {scaling}" if scaling else "")
    return autoscaler_message(events) or next(filter(None, map(_explanation, reversed(events))), "")


def _of(event: Object, pod: Object) -> str:
    """What a warning says of this pod, or an empty string."""
    of_it = event_object(event) == objects.name(pod)
    return _explanation(event) if of_it and event.get("type") != "Normal" else ""


def _explanation(event: Object) -> str:
    reason = str(event.get("reason") or "")
    if event.get("type") == "Normal" and reason not in _EXPLAINING:
        return ""
    return f"{reason}: {event_message(event)}" if reason else event_message(event)
