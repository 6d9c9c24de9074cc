"""What the Training Operator reads from a job's pods.

Source: kubeflow/trainer v1.9.3, `pkg/core` and `pkg/util/k8sutil`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import ENDED_PHASES, phase
from kfp_pytorch.local.controllers.pytorchjob.pods import REPLICA_INDEX_LABEL

NO_EXIT_CODE = 0xBEEF
"""What the operator takes for the exit code of a container that has not ended."""


@dataclass(frozen=True)
class JobEvent:
    """An event to record about the job."""

    type: str  # `Normal` or `Warning`
    reason: str  # such as `SuccessfulCreatePod`
    message: str  # the text for a person


def abnormal_pod_events(pod: Object) -> Iterator[JobEvent]:
    """Events about an active pod: its containers' failures, or its newest condition."""
    name, status = objects.name(pod), pod.get("status") or {}
    statuses = status.get("containerStatuses") or status.get("initContainerStatuses")
    for container in statuses or []:
        state = container.get("state") or {}
        ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
        where = f"Error pod {name} container {container['name']}"
        if ended.get("exitCode"):
            code, message = ended["exitCode"], ended.get("message", "")
            text = f"{where} exitCode: {code} terminated message: {message}"
            yield JobEvent("Warning", ended.get("reason", ""), text)
        if waiting.get("message"):
            text = f"{where} waiting message: {waiting['message']}"
            yield JobEvent("Warning", waiting.get("reason", ""), text)
    conditions = status.get("conditions")
    if not statuses and conditions:
        newest = max(conditions, key=lambda condition: condition.get("lastTransitionTime") or "")
        if newest["status"] != "True":
            text = f"Error pod {name} condition message: {newest.get('message', '')}"
            yield JobEvent("Warning", newest.get("reason", ""), text)


def is_active(pod: Object) -> bool:
    """Whether the pod neither has ended nor is being deleted."""
    return phase(pod) not in ENDED_PHASES and not objects.is_terminating(pod)


def by_index(found: list[Object]) -> dict[int, Object]:
    """The first pod, or service, of each replica index."""
    first: dict[int, Object] = {}
    for each in found:
        index = objects.labels(each).get(REPLICA_INDEX_LABEL, "")
        if index.isdecimal():
            first.setdefault(int(index), each)
    return first


def exit_code(pod: Object) -> int:
    """The exit code of the pod's `pytorch` container, or `NO_EXIT_CODE`."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if container["name"] == PYTORCH_CONTAINER and ended:
            return int(ended["exitCode"])
    return NO_EXIT_CODE


def count(counts: Object, pod: Object) -> None:
    """Add a pod to the counts of its replica type; one that is deleted while it runs has failed."""
    key = {"Succeeded": "succeeded", "Failed": "failed", "Running": "active"}.get(phase(pod))
    if key == "active" and objects.is_terminating(pod):
        key = "failed"
    if key:
        counts[key] = counts.get(key, 0) + 1
