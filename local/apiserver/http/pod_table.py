"""Cells of a pod in `kubectl get pods`, by the rules of kubectl's own printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object


def ready(pod: Object) -> str:
    """How many of the pod's containers are ready."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    count = sum(1 for item in statuses if item.get("ready") and "running" in _state(item))
    return f"{count}/{len((pod.get('spec') or {}).get('containers') or [])}"


def _state(status: Object) -> Object:
    return status.get("state") or {}


def restarts(pod: Object, age: Callable[[Any], str]) -> str:
    """How often the pod's containers were restarted, and when the last one ended."""
    status = pod.get("status") or {}
    statuses = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    count = sum(int(item.get("restartCount") or 0) for item in statuses)
    last = [(item.get("lastState") or {}).get("terminated") or {} for item in statuses]
    times = sorted(item["finishedAt"] for item in last if item.get("finishedAt"))
    return f"{count} ({age(times[-1])} ago)" if count and times else str(count)


def reason(pod: Object) -> str:
    """The pod's status: its phase, or why a container waits or has ended."""
    status = pod.get("status") or {}
    phase = str(status.get("reason") or status.get("phase") or "Unknown")
    found = _init_reason(pod) or _container_reason(status, phase)
    if objects.is_terminating(pod):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return found


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
