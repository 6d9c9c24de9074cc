"""The row of a pod in `kubectl get pods`: its status is worked out from its containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object

_NONE = "<none>"


def pod_cells(pod: Object, age: Callable[[Any], str]) -> list[Any]:
    """A pod's cells, in the order and by the rules of kubectl's own printer.

    Args:
        pod: The pod.
        age: Writes how long ago a time was.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for item in statuses if item.get("ready") and "running" in _state(item))
    return [
        objects.name(pod),
        f"{ready}/{len(spec.get('containers') or [])}",
        _reason(pod),
        _restarts(status, age),
        age(objects.metadata(pod).get("creationTimestamp")),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _state(status: Object) -> Object:
    return status.get("state") or {}


def _restarts(status: Object, age: Callable[[Any], str]) -> str:
    statuses = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    count = sum(int(item.get("restartCount") or 0) for item in statuses)
    last = [(item.get("lastState") or {}).get("terminated") or {} for item in statuses]
    times = sorted(item["finishedAt"] for item in last if item.get("finishedAt"))
    return f"{count} ({age(times[-1])} ago)" if count and times else str(count)


def _reason(pod: Object) -> str:
    status = pod.get("status") or {}
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    reason = _init_reason(pod) or _container_reason(status, reason)
    if objects.is_terminating(pod):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _init_reason(pod: Object) -> str:
    """What holds up the init containers; empty when they are done."""
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    total = len((pod.get("spec") or {}).get("initContainers") or [])
    for index, status in enumerate(statuses):
        terminated = _state(status).get("terminated")
        if terminated and not terminated.get("exitCode"):
            continue
        if terminated:
            return f"Init:{terminated.get('reason') or _exit(terminated)}"
        waiting = (_state(status).get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{total}"
    return ""


def _exit(terminated: Object) -> str:
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode')}"


def _container_reason(status: Object, reason: str) -> str:
    running = False
    for item in reversed(status.get("containerStatuses") or []):
        state = _state(item)
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            reason = state["terminated"].get("reason") or _exit(state["terminated"])
        elif item.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or []
        )
        return "Running" if ready else "NotReady"
    return reason
