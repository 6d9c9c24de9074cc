"""Tables: what `kubectl get` prints, made by the server as a real one makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http import jsonpath
from kfp_pytorch.local.apiserver.http.pod_table import pod_cells
from kfp_pytorch.local.apiserver.registry import AGE, Column, Resource

_NAME = Column("Name", ".metadata.name")
_UNKNOWN = "<unknown>"
_NONE = "<none>"

Cells = Callable[[Object, datetime], list[Any]]


def table(
    resource: Resource,
    found: Iterable[Object],
    now: datetime,
    list_metadata: Object,
    include: str = "Metadata",
) -> Object:
    """Objects as a Table.

    Args:
        resource: Their type.
        found: The objects.
        now: The time that ages are counted to.
        list_metadata: The metadata of the whole.
        include: How much of each object each row carries: `None`, `Metadata` or `Object`.
    """
    columns, cells = _printer(resource)
    rows = []
    for obj in found:
        row: Object = {"cells": cells(obj, now)}
        if include != "None":
            row["object"] = obj if include == "Object" else partial(obj)
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": list_metadata,
        "columnDefinitions": [_definition(column) for column in columns],
        "rows": rows,
    }


def partial(obj: Object) -> Object:
    """An object's metadata alone."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": objects.metadata(obj),
    }


def _definition(column: Column) -> Object:
    # Ages are text by the time that they are in a cell.
    kind = "string" if column.type == "date" else column.type
    return {
        "name": column.name,
        "type": kind,
        "format": "name" if column.name == "Name" else "",
        "description": "",
        "priority": column.priority,
    }


def age(since: Any, now: datetime) -> str:
    """How long ago a time of the API was, as kubectl writes it."""
    if not since:
        return _UNKNOWN
    return human(now - datetime.fromisoformat(str(since)))


def human(span: timedelta) -> str:
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


def _printer(resource: Resource) -> tuple[tuple[Column, ...], Cells]:
    if resource.kind.kind in _PRINTERS and not resource.custom:
        headings, cells = _PRINTERS[resource.kind.kind]
        return tuple(_heading(text) for text in headings), cells
    columns = resource.columns if resource.custom else (AGE,)

    def custom(obj: Object, now: datetime) -> list[Any]:
        return [objects.name(obj), *(_cell(column, obj, now) for column in columns)]

    return (_NAME, *columns), custom


def _heading(text: str) -> Column:
    """A native column from its heading; one with a `+` is for `-o wide` alone."""
    return Column(text.lstrip("+"), "", priority=int(text.startswith("+")))


def _cell(column: Column, obj: Object, now: datetime) -> Any:
    found = jsonpath.values(obj, column.path)
    if column.type == "date":
        return age(found[0] if found else None, now)
    if not found:
        return None
    if len(found) > 1:
        return ",".join(str(value) for value in found)
    return found[0]


def _created(obj: Object, now: datetime) -> str:
    return age(objects.metadata(obj).get("creationTimestamp"), now)


def _namespace_cells(obj: Object, now: datetime) -> list[Any]:
    return [objects.name(obj), obj["status"].get("phase", ""), _created(obj, now)]


def _node_cells(obj: Object, now: datetime) -> list[Any]:
    status = obj.get("status") or {}
    ready = jsonpath.values(status, ".conditions[?(@.type=='Ready')].status")
    word = {"True": "Ready", "False": "NotReady"}.get(ready[0] if ready else "", "Unknown")
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in objects.labels(obj) if key.startswith(prefix)]
    version = (status.get("nodeInfo") or {}).get("kubeletVersion", "")
    shown = ",".join(sorted(roles)) or _NONE
    return [objects.name(obj), word, shown, _created(obj, now), version]


def _data_cells(obj: Object, now: datetime) -> list[Any]:
    count = len(obj.get("data") or {}) + len(obj.get("binaryData") or {})
    return [objects.name(obj), count, _created(obj, now)]


def _secret_cells(obj: Object, now: datetime) -> list[Any]:
    return [objects.name(obj), obj.get("type"), len(obj.get("data") or {}), _created(obj, now)]


def _account_cells(obj: Object, now: datetime) -> list[Any]:
    return [objects.name(obj), len(obj.get("secrets") or []), _created(obj, now)]


def _service_cells(obj: Object, now: datetime) -> list[Any]:
    spec = obj.get("spec") or {}
    ports = [f"{port.get('port')}/{port.get('protocol')}" for port in spec.get("ports") or []]
    selector = spec.get("selector") or {}
    return [
        objects.name(obj),
        spec.get("type"),
        spec.get("clusterIP") or _NONE,
        _NONE,
        ",".join(ports) or _NONE,
        _created(obj, now),
        ",".join(f"{key}={value}" for key, value in selector.items()) or _NONE,
    ]


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _claim_cells(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    phase = "Terminating" if objects.is_terminating(obj) else status.get("phase")
    modes = status.get("accessModes") or spec.get("accessModes") or []
    return [
        objects.name(obj),
        phase,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", ""),
        ",".join(_MODES.get(mode, mode) for mode in modes),
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or "<unset>",
        _created(obj, now),
        spec.get("volumeMode"),
    ]


def _event_cells(obj: Object, now: datetime) -> list[Any]:
    about = obj.get("involvedObject") or {}
    first, last = obj.get("firstTimestamp"), obj.get("lastTimestamp")
    seen = age(last or first or obj.get("eventTime"), now)
    count = int(obj.get("count") or 1)
    if count > 1:
        seen = f"{seen} (x{count} over {age(first, now)})"
    component = (obj.get("source") or {}).get("component") or obj.get("reportingComponent") or ""
    return [
        seen,
        obj.get("type"),
        obj.get("reason"),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        str(obj.get("message") or "").strip(),
        about.get("fieldPath", ""),
        component,
        age(first, now),
        count,
        objects.name(obj),
    ]


def _deployment_cells(obj: Object, now: datetime) -> list[Any]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    containers = (spec.get("template") or {}).get("spec", {}).get("containers") or []
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    return [
        objects.name(obj),
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _created(obj, now),
        ",".join(item["name"] for item in containers),
        ",".join(str(item.get("image")) for item in containers),
        ",".join(f"{key}={value}" for key, value in labels.items()) or _NONE,
    ]


def _pod_row(obj: Object, now: datetime) -> list[Any]:
    return pod_cells(obj, lambda since: age(since, now))


_PRINTERS: dict[str, tuple[list[str], Cells]] = {
    "Namespace": (["Name", "Status", "Age"], _namespace_cells),
    "Node": (["Name", "Status", "Roles", "Age", "Version"], _node_cells),
    "ConfigMap": (["Name", "Data", "Age"], _data_cells),
    "Secret": (["Name", "Type", "Data", "Age"], _secret_cells),
    "ServiceAccount": (["Name", "Secrets", "Age"], _account_cells),
    "Service": (
        ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "+Selector"],
        _service_cells,
    ),
    "PersistentVolumeClaim": (
        [
            *("Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass"),
            *("VolumeAttributesClass", "Age", "+VolumeMode"),
        ],
        _claim_cells,
    ),
    "Event": (
        [
            *("Last Seen", "Type", "Reason", "Object", "Message"),
            *("+Subobject", "+Source", "+First Seen", "+Count", "+Name"),
        ],
        _event_cells,
    ),
    "Deployment": (
        ["Name", "Ready", "Up-to-date", "Available", "Age", "+Containers", "+Images", "+Selector"],
        _deployment_cells,
    ),
    "Pod": (
        [
            *("Name", "Ready", "Status", "Restarts", "Age"),
            *("+IP", "+Node", "+Nominated Node", "+Readiness Gates"),
        ],
        _pod_row,
    ),
}
