"""Cells of `kubectl get` that are more than a value of the object, by kubectl's own printers.

Each is a function of the object and the time, and of a JSONPath where `native.yaml` gives it one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http import jsonpath

_UNKNOWN = "<unknown>"
_NONE = "<none>"
_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def since(time: Any, now: datetime) -> str:
    """How long ago a time of the API was, as kubectl writes it."""
    if not time:
        return _UNKNOWN
    return _human(now - datetime.fromisoformat(str(time)))


def _human(span: timedelta) -> str:
    """A span of time in one or two units, as kubectl writes it."""
    seconds = int(span.total_seconds())
    if seconds < -1:
        return "<invalid>"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" + (f"{small}{small_unit}" if small else "")


def age(obj: Object, now: datetime, path: str) -> str:
    """How long ago the time at a path was."""
    return since(next(iter(jsonpath.values(obj, path)), None), now)


def pairs(obj: Object, _: datetime, path: str) -> str:
    """The labels at a path, as in a selector."""
    found = jsonpath.values(obj, path) or [{}]
    return ",".join(f"{key}={value}" for key, value in found[0].items()) or _NONE


def entries(obj: Object, _: datetime) -> int:
    """How much an object without a spec holds: a ConfigMap, a Secret, a ServiceAccount."""
    return sum(len(obj.get(field) or ()) for field in ("data", "binaryData", "secrets"))


def node_status(obj: Object, _: datetime) -> str:
    """Whether the node is ready."""
    ready = jsonpath.values(obj, ".status.conditions[?(@.type=='Ready')].status")
    return {"True": "Ready", "False": "NotReady"}.get(ready[0] if ready else "", "Unknown")


def node_roles(obj: Object, _: datetime) -> str:
    """The node's roles, from its labels."""
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in objects.labels(obj) if key.startswith(prefix)]
    return ",".join(sorted(roles)) or _NONE


def service_ports(obj: Object, _: datetime) -> str:
    """The ports of a Service."""
    ports = (obj.get("spec") or {}).get("ports") or []
    return ",".join(f"{port.get('port')}/{port.get('protocol')}" for port in ports) or _NONE


def claim_status(obj: Object, _: datetime) -> str:
    """The phase of a claim."""
    phase = (obj.get("status") or {}).get("phase") or ""
    return "Terminating" if objects.is_terminating(obj) else phase


def claim_modes(obj: Object, _: datetime) -> str:
    """The access modes of a claim, in short."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    modes = status.get("accessModes") or spec.get("accessModes") or []
    return ",".join(_MODES.get(mode, mode) for mode in modes)


def event_seen(obj: Object, now: datetime) -> str:
    """When an event was last seen, and how often since when."""
    first, last = obj.get("firstTimestamp"), obj.get("lastTimestamp")
    seen, count = since(last or first or obj.get("eventTime"), now), event_count(obj, now)
    return f"{seen} (x{count} over {since(first, now)})" if count > 1 else seen


def event_count(obj: Object, _: datetime) -> int:
    """How often an event was seen."""
    return int(obj.get("count") or 1)


def event_object(obj: Object, _: datetime) -> str:
    """What an event is about."""
    about = obj.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def event_message(obj: Object, _: datetime) -> str:
    """The text of an event."""
    return str(obj.get("message") or "").strip()


def event_source(obj: Object, _: datetime) -> str:
    """Who recorded an event."""
    return (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""


def deployment_ready(obj: Object, _: datetime) -> str:
    """How many of the pods that a Deployment wants are ready."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"


def pod_ready(pod: Object, _: datetime) -> str:
    """How many of the pod's containers are ready."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    count = sum(1 for item in statuses if item.get("ready") and "running" in _state(item))
    return f"{count}/{len((pod.get('spec') or {}).get('containers') or [])}"


def _state(status: Object) -> Object:
    return status.get("state") or {}


def pod_restarts(pod: Object, now: datetime) -> str:
    """How often the pod's containers were restarted, and when the last one ended."""
    status = pod.get("status") or {}
    statuses = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    count = sum(int(item.get("restartCount") or 0) for item in statuses)
    last = [(item.get("lastState") or {}).get("terminated") or {} for item in statuses]
    times = sorted(item["finishedAt"] for item in last if item.get("finishedAt"))
    return f"{count} ({since(times[-1], now)} ago)" if count and times else str(count)


def pod_reason(pod: Object, _: datetime) -> str:
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
