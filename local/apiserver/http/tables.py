"""Tables: what `kubectl get` prints, made by the server as a real one makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http import jsonpath, pod_table
from kfp_pytorch.local.apiserver.registry import AGE, Column, Resource

_NAME = Column("Name", ".metadata.name")
_UNKNOWN = "<unknown>"
_NONE = "<none>"

Cell = Callable[[Object, datetime], Any]
"""The content of a column for an object, at a time."""


def table(
    resource: Resource,
    found: Iterable[Object],
    now: datetime,
    list_metadata: Object,
    include: str = "Metadata",
) -> Object:
    """Objects as a Table; `include` in each row: `None`, `Metadata` or the whole `Object`."""
    columns = _columns(resource)
    rows = []
    for obj in found:
        row: Object = {"cells": [cell(obj, now) for cell in columns.values()]}
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


def _columns(resource: Resource) -> dict[Column, Cell]:
    if not resource.custom and resource.kind.kind in _NATIVE:
        # A heading with a `+` is for `-o wide` alone.
        return {
            Column(heading.lstrip("+"), "", priority=int(heading.startswith("+"))): cell
            for heading, cell in _NATIVE[resource.kind.kind].items()
        }
    columns = resource.columns if resource.custom else (AGE,)
    return {_NAME: _name, **{column: _custom_cell(column) for column in columns}}


def _custom_cell(column: Column) -> Cell:
    def cell(obj: Object, now: datetime) -> Any:
        found = jsonpath.values(obj, column.path)
        if column.type == "date":
            return age(found[0] if found else None, now)
        return ",".join(map(str, found)) if len(found) > 1 else next(iter(found), None)

    return cell


def _name(obj: Object, _: datetime) -> str:
    return objects.name(obj)


def _created(obj: Object, now: datetime) -> str:
    return age(objects.metadata(obj).get("creationTimestamp"), now)


def _path(path: str, default: str = "") -> Cell:
    """A cell with the values at a JSONPath, or a default."""

    def cell(obj: Object, _: datetime) -> Any:
        found = [value for value in jsonpath.values(obj, path) if value not in (None, "")]
        return found[0] if len(found) == 1 else ",".join(map(str, found)) or default

    return cell


def _pairs(path: str) -> Cell:
    """A cell with the labels at a path, as in a selector."""

    def cell(obj: Object, _: datetime) -> str:
        found = jsonpath.values(obj, path) or [{}]
        return ",".join(f"{key}={value}" for key, value in found[0].items()) or _NONE

    return cell


def _count(*fields: str) -> Cell:
    """A cell with the number of entries of some fields."""
    return lambda obj, _: sum(len(obj.get(field) or ()) for field in fields)


def _node_status(obj: Object, _: datetime) -> str:
    ready = jsonpath.values(obj, ".status.conditions[?(@.type=='Ready')].status")
    return {"True": "Ready", "False": "NotReady"}.get(ready[0] if ready else "", "Unknown")


def _node_roles(obj: Object, _: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in objects.labels(obj) if key.startswith(prefix)]
    return ",".join(sorted(roles)) or _NONE


def _ports(obj: Object, _: datetime) -> str:
    ports = (obj.get("spec") or {}).get("ports") or []
    return ",".join(f"{port.get('port')}/{port.get('protocol')}" for port in ports) or _NONE


def _claim_status(obj: Object, now: datetime) -> Any:
    return "Terminating" if objects.is_terminating(obj) else _path(".status.phase")(obj, now)


def _claim_modes(obj: Object, _: datetime) -> str:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    modes = status.get("accessModes") or spec.get("accessModes") or []
    return ",".join(_MODES.get(mode, mode) for mode in modes)


def _event_seen(obj: Object, now: datetime) -> str:
    first, last = obj.get("firstTimestamp"), obj.get("lastTimestamp")
    seen, count = age(last or first or obj.get("eventTime"), now), _event_count(obj, now)
    return f"{seen} (x{count} over {age(first, now)})" if count > 1 else seen


def _event_count(obj: Object, _: datetime) -> int:
    return int(obj.get("count") or 1)


def _event_object(obj: Object, _: datetime) -> str:
    about = obj.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _event_source(obj: Object, now: datetime) -> Any:
    return _path(".source.component")(obj, now) or obj.get("reportingComponent") or ""


def _deployment_ready(obj: Object, _: datetime) -> str:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"


def _status_number(field: str) -> Cell:
    return lambda obj, _: (obj.get("status") or {}).get(field, 0)


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_CONTAINERS = ".spec.template.spec.containers[*]"
# The columns of kubectl's own printers.
_NATIVE: dict[str, dict[str, Cell]] = {
    "Namespace": {"Name": _name, "Status": _path(".status.phase"), "Age": _created},
    "Node": {
        "Name": _name,
        "Status": _node_status,
        "Roles": _node_roles,
        "Age": _created,
        "Version": _path(".status.nodeInfo.kubeletVersion"),
    },
    "ConfigMap": {"Name": _name, "Data": _count("data", "binaryData"), "Age": _created},
    "Secret": {"Name": _name, "Type": _path(".type"), "Data": _count("data"), "Age": _created},
    "ServiceAccount": {"Name": _name, "Secrets": _count("secrets"), "Age": _created},
    "Service": {
        "Name": _name,
        "Type": _path(".spec.type"),
        "Cluster-IP": _path(".spec.clusterIP", _NONE),
        "External-IP": lambda _obj, _now: _NONE,
        "Port(s)": _ports,
        "Age": _created,
        "+Selector": _pairs(".spec.selector"),
    },
    "PersistentVolumeClaim": {
        "Name": _name,
        "Status": _claim_status,
        "Volume": _path(".spec.volumeName"),
        "Capacity": _path(".status.capacity.storage"),
        "Access Modes": _claim_modes,
        "StorageClass": _path(".spec.storageClassName"),
        "VolumeAttributesClass": _path(".spec.volumeAttributesClassName", "<unset>"),
        "Age": _created,
        "+VolumeMode": _path(".spec.volumeMode"),
    },
    "Event": {
        "Last Seen": _event_seen,
        "Type": _path(".type"),
        "Reason": _path(".reason"),
        "Object": _event_object,
        "Message": lambda obj, _: str(obj.get("message") or "").strip(),
        "+Subobject": _path(".involvedObject.fieldPath"),
        "+Source": _event_source,
        "+First Seen": lambda obj, now: age(obj.get("firstTimestamp"), now),
        "+Count": _event_count,
        "+Name": _name,
    },
    "Deployment": {
        "Name": _name,
        "Ready": _deployment_ready,
        "Up-to-date": _status_number("updatedReplicas"),
        "Available": _status_number("availableReplicas"),
        "Age": _created,
        "+Containers": _path(f"{_CONTAINERS}.name"),
        "+Images": _path(f"{_CONTAINERS}.image"),
        "+Selector": _pairs(".spec.selector.matchLabels"),
    },
    "Pod": {
        "Name": _name,
        "Ready": lambda obj, _: pod_table.ready(obj),
        "Status": lambda obj, _: pod_table.reason(obj),
        "Restarts": lambda obj, now: pod_table.restarts(obj, lambda time: age(time, now)),
        "Age": _created,
        "+IP": _path(".status.podIP", _NONE),
        "+Node": _path(".spec.nodeName", _NONE),
        "+Nominated Node": _path(".status.nominatedNodeName", _NONE),
        "+Readiness Gates": lambda _obj, _now: _NONE,
    },
}
