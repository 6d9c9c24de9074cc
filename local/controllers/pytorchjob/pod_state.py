"""What the PyTorchJob operator sees in a job's pods.

Source: kubeflow/trainer v1.9.3, `pkg/core` and `pkg/util/k8sutil`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.controllers.pytorchjob.pods import REPLICA_INDEX_LABEL

Object = dict[str, Any]

NO_EXIT_CODE = 0xBEEF
"""What the operator takes for the exit code of a container that has not ended."""


@dataclass(frozen=True)
class Note:
    """An event to record about the job.

    Attributes:
        type: `Normal` or `Warning`.
        reason: Such as `SuccessfulCreatePod`.
        message: The words for a person.
    """

    type: str
    reason: str
    message: str


def abnormalities(each: Object) -> Iterator[Note]:
    """What is wrong with an active pod: its containers' words, or its newest condition's."""
    name, status = objects.name(each), each.get("status") or {}
    statuses = status.get("containerStatuses") or status.get("initContainerStatuses")
    for container in statuses or []:
        state = container.get("state") or {}
        ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
        where = f"Error pod {name} container {container['name']}"
        if ended.get("exitCode"):
            message = (
                f"exitCode: {ended['exitCode']} terminated message: {ended.get('message', '')}"
            )
            yield Note("Warning", ended.get("reason", ""), f"{where} {message}")
        if waiting.get("message"):
            message = f"waiting message: {waiting['message']}"
            yield Note("Warning", waiting.get("reason", ""), f"{where} {message}")
    conditions = status.get("conditions")
    if not statuses and conditions:
        newest = max(conditions, key=lambda condition: condition.get("lastTransitionTime") or "")
        if newest["status"] != "True":
            message = f"Error pod {name} condition message: {newest.get('message', '')}"
            yield Note("Warning", newest.get("reason", ""), message)


def phase(each: Object) -> str:
    """The pod's phase; empty while it has none."""
    return str((each.get("status") or {}).get("phase") or "")


def active(each: Object) -> bool:
    """Whether the pod neither has ended nor is being deleted."""
    return phase(each) not in ("Succeeded", "Failed") and not objects.deleting(each)


def by_index(found: list[Object]) -> dict[int, Object]:
    """The first pod, or service, of each replica index."""
    first: dict[int, Object] = {}
    for each in found:
        index = objects.labels(each).get(REPLICA_INDEX_LABEL, "")
        if index.isdecimal():
            first.setdefault(int(index), each)
    return first


def exit_code(each: Object) -> int:
    """The exit code of the pod's `pytorch` container, or `NO_EXIT_CODE`."""
    for container in (each.get("status") or {}).get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if container["name"] == PYTORCH_CONTAINER and ended:
            return int(ended["exitCode"])
    return NO_EXIT_CODE


def count(counts: Object, each: Object) -> None:
    """Add a pod to the counts of its replica type."""
    key = {"Succeeded": "succeeded", "Failed": "failed", "Running": "active"}.get(phase(each))
    if key == "active" and objects.deleting(each):
        key = "failed"
    if key:
        counts[key] = counts.get(key, 0) + 1
