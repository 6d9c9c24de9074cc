"""What the Training Operator reads from a PyTorchJob's pods.

Source: kubeflow/trainer v1.9.3, `pkg/core`.
"""

from __future__ import annotations

from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import phase
from kfp_pytorch.local.controllers.trainingoperator.labels import REPLICA_INDEX_LABEL

NO_EXIT_CODE = 0xBEEF
"""What the operator takes for the exit code of a container that has not ended."""


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
