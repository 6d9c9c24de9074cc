"""Explains why a new revision does not serve: what serves instead, pods, events and logs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.constants import EVENT
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kserve.awaited import Awaited
from kfp_pytorch.launcher.kserve.rollout import model_failure, model_states
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.events import about
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import container_status

CRASHES = 2
TAIL_LINES = 20
MOST_EVENTS = 3
MOST_PODS = 3
LONGEST_LINE = 500
# Events of this reason repeat what the containers' states say.
REPEATED_REASON = "BackOff"


@dataclass(frozen=True)
class Snapshot:
    """What was last read of a rollout.

    Attributes:
        workload: What runs it, its Deployment or its newest Revision; None where there is none.
    """

    service: Object  # the InferenceService
    workload: Object | None
    pods: list[Object]  # the new revision's pods
    unread: str  # why the pods could not be read; empty where they could


def explain(kube: Kube, awaited: Awaited, seen: Snapshot) -> Iterator[str]:
    """Yield what serves now, and all that may explain why the new revision does not.

    `kube`: the cluster, for logs and events; what cannot be read is named.
    """
    for part in _parts(kube, awaited, seen):
        yield "\n".join(text.cut(line, LONGEST_LINE) for line in text.settled(part).split("\n"))


def _parts(kube: Kube, awaited: Awaited, seen: Snapshot) -> Iterator[str]:
    yield awaited.serves_now(seen.service, seen.workload)
    for condition in objects.each(seen.service, "status", "conditions"):
        well = "False" if condition.get("type") == "Stopped" else "True"
        if condition.get("status") != well and condition.get("severity") != "Info":
            words = f"{condition.get('reason') or ''} {condition.get('message') or ''}".strip()
            yield f"Condition {condition.get('type')} is {condition.get('status')}: {words}"
    for said in filter(None, (model_states(seen.service), model_failure(seen.service))):
        yield f"KServe says of the model: {said}"
    # Those that are not ready come first.
    shown = sorted(seen.pods, key=pod_status.is_ready)[:MOST_PODS]
    try:
        for pod in shown:
            yield from _pod_evidence(kube, pod)
        yield from itertools.islice(_events(kube, seen, shown), MOST_EVENTS)
    except StepError as error:
        yield f"(More could not be read: {error.short})"
    if len(seen.pods) > len(shown):
        yield f"(and {text.counted(len(seen.pods) - len(shown), 'more pod')} of this revision)"
    if seen.unread:
        yield f"({seen.unread})"
    if awaited.warning:
        yield awaited.warning


def _pod_evidence(kube: Kube, pod: Object) -> Iterator[str]:
    name = objects.name(pod)
    if dig(pod, "status", "reason"):
        words = str(dig(pod, "status", "message") or "").strip()
        yield f"Pod {name} is {dig(pod, 'status', 'phase')}: {dig(pod, 'status', 'reason')} {words}"
    scheduled = objects.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        yield f"Pod {name} is not scheduled: {scheduled.get('message')}"
    for container, reason, words in pod_status.waiting_containers(pod):
        yield f"Pod {name}: container {container} waits: {reason} {words}".rstrip()
    for container, end in {end.container: end for end in pod_status.failed_ends([pod])}.items():
        started = dig(container_status(pod, container), "state", "running") is not None
        tail = _log_tail(kube, name, container, end.message, previous=started)
        yield f"Container {container} of pod {name} ended with {_end_words(end)}. {tail}"
    for status in pod_status.statuses(pod):
        if dig(status, "state", "running") is not None and status.get("ready") is False:
            container = str(status.get("name"))
            tail = _log_tail(kube, name, container)
            yield f"Container {container} of pod {name} runs, but is not ready. {tail}"


def _events(kube: Kube, seen: Snapshot, pods: list[Object]) -> Iterator[str]:
    untouched = [("InferenceService", seen.service)] if seen.service and not seen.workload else []
    for what, obj in [*untouched, *(("pod", pod) for pod in pods)]:
        name = objects.name(obj)
        for event in reversed(warnings(kube, obj)):
            yield f"Event of {what} {name}: {event.get('reason')}: {event.get('message')}"


def _log_tail(
    kube: Kube, pod: str, container: str, instead: str = "", *, previous: bool = False
) -> str:
    try:
        tail = kube.read_log(pod, container, previous=previous, tail_lines=TAIL_LINES)
    except ApiError as error:
        tail = instead or f"(it could not be read: {error.short})"
    return f"The end of its log:\n{tail.rstrip() or '(it is empty)'}"


def warnings(kube: Kube, obj: Object) -> list[Object]:
    """Read the last warnings about an object, without those that only repeat its state."""
    found = events_about(kube, obj)
    warned = [e for e in found if e.get("type") == "Warning" and e.get("reason") != REPEATED_REASON]
    return warned[-MOST_EVENTS:]


def events_about(kube: Kube, obj: Object) -> list[Object]:
    """Read the events about an object."""
    events = kube.list(EVENT, fields=f"involvedObject.name={objects.name(obj)}")
    # Another object had this name before, or one of another kind has it.
    of_it = (None, dig(obj, "metadata", "uid"))
    return [event for event in events if about(event).get("uid") in of_it]


def _end_words(end: pod_status.ContainerEnd) -> str:
    words = pod_status.describe_exit_code(end.exit_code)
    return f"{words}, {end.reason}" if end.reason not in ("", "Error", "Completed") else words


def crash_loop(status: Object) -> str:
    """How a container ended that has crashed more than once, or an empty string."""
    if status.get("ready") is True and dig(status, "state", "running") is not None:
        return ""
    now = dig(status, "state", "terminated") or {}
    end = now or dig(status, "lastState", "terminated") or {}
    restarts = int(status.get("restartCount") or 0)
    if not end:
        # The kubelet forgets how a container ended once that container was removed.
        return f"keeps restarting, {restarts} times so far" if restarts >= CRASHES else ""
    looping = dig(status, "state", "waiting", "reason") == "CrashLoopBackOff"
    code, reason = int(end.get("exitCode") or 0), str(end.get("reason") or "")
    crashes = restarts + bool(now.get("exitCode"))
    if not looping and (crashes < CRASHES or not code):
        return ""
    said = text.settled(str(end.get("message") or ""))
    words = [line for line in said.split("\n") if line.strip()]
    tail = f": {words[-1]}" if words else ""
    if reason == "OOMKilled":
        tail = ", OOMKilled: it needs more memory than its limit"
    what = "keeps crashing" if code else "keeps ending, as no server should"
    return f"{what}, {pod_status.describe_exit_code(code)}{tail}"
