"""The fields of native kinds, from the models of the official client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Cause, Object
from kfp_pytorch.local.apiserver.registry import Resource
from kfp_pytorch.local.apiserver.validation import defaults, models, pods
from kfp_pytorch.local.apiserver.validation.fields import forbidden, unreadable

# Maps of quantities: a number is taken for its text, as the API does.
_QUANTITIES = {"limits", "requests", "capacity", "allocatable", "overhead", "sizeLimit", "divisor"}
_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "datetime": (str,),
}
_GO_TYPES = {"str": "string", "int": "int32", "float": "float64", "datetime": "v1.Time"}
_OWN_MODEL = {"Event": "CoreV1Event", "HorizontalPodAutoscaler": "V2HorizontalPodAutoscaler"}


class _MisfitError(Exception):
    """A value of another type than its field's."""

    def __init__(self, value: Any, path: str, wanted: str) -> None:
        super().__init__(path)
        self.value, self.path, self.wanted = value, path, wanted


def prune(resource: Resource, obj: Object) -> tuple[Object, list[str]]:
    """The object without nulls and unknown fields, and their paths. Raises ApiError: 400."""
    dropped: list[str] = []
    model = _OWN_MODEL.get(resource.kind.kind, f"V1{resource.kind.kind}")
    body = {key: value for key, value in obj.items() if key not in ("metadata", "kind")}
    try:
        kept = _fitted(body, model, "", dropped)
    except _MisfitError as error:
        where = f"{resource.kind.kind}.{error.path}"
        wanted = _GO_TYPES.get(error.wanted, error.wanted)
        raise unreadable(resource, error.value, where, wanted) from None
    return {"kind": obj["kind"], **kept, "metadata": obj["metadata"]}, dropped


def _fitted(value: Any, wanted: str, path: str, dropped: list[str]) -> Any:
    if wanted == "object" or value is None:
        return value
    if wanted in _SCALARS:
        return _fitted_scalar(value, wanted, path)
    if wanted.startswith("dict("):
        return _fitted_map(value, wanted[len("dict(str, ") : -1], path, dropped)
    if wanted.startswith("list["):
        if not isinstance(value, list):
            raise _MisfitError(value, path, "array")
        inner = wanted[len("list[") : -1]
        return [_fitted(item, inner, f"{path}[{i}]", dropped) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        raise _MisfitError(value, path, f"v1.{wanted.removeprefix('V1')}")
    fields, kept = models.fields(wanted), {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        if key not in fields:
            dropped.append(where)
        elif item is not None:
            fitted = _fitted(item, fields[key], where, dropped)
            # Go leaves empty maps and lists out, and keeps empty structures.
            if fitted or not fields[key].startswith(("dict(", "list[")):
                kept[key] = fitted
    return kept


def _fitted_scalar(value: Any, wanted: str, path: str) -> Any:
    if path.rpartition(".")[2] in _QUANTITIES and isinstance(value, int | float):
        return str(value)
    is_number = wanted in ("int", "float")
    if not isinstance(value, _SCALARS[wanted]) or (is_number and isinstance(value, bool)):
        raise _MisfitError(value, path, wanted)
    if wanted == "datetime" and not _is_time(str(value)):
        raise _MisfitError(value, path, wanted)
    return value


def _is_time(text: str) -> bool:
    """Whether a text is a time with its zone: what prints an age, or ends an event, reads it."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _fitted_map(value: Any, inner: str, path: str, dropped: list[str]) -> Object:
    if not isinstance(value, dict):
        raise _MisfitError(value, path, "map[string]string")
    quantities = path.rpartition(".")[2] in _QUANTITIES
    kept = {}
    for key, item in value.items():
        if quantities and isinstance(item, int | float) and not isinstance(item, bool):
            kept[key] = str(item)
        elif item is not None:
            kept[key] = _fitted(item, inner, f"{path}.{key}", dropped)
    return kept


def defaulted(resource: Resource, obj: Object) -> Object:
    """The object with what a real server fills in."""
    fill = defaults.FILLERS.get(resource.kind.kind)
    if fill is not None:
        fill(obj)
    return obj


def check(resource: Resource, obj: Object) -> Iterator[Cause]:
    """What is wrong with the fields of a native object."""
    if resource.kind == POD:
        yield from pods.check_spec(obj.get("spec") or {}, "spec")
    elif resource.kind.kind == "Deployment":
        yield from defaults.check_deployment(obj.get("spec") or {})
    elif resource.kind.kind in ("ConfigMap", "Secret"):
        yield from _check_keys(obj)


def _check_keys(obj: Object) -> Iterator[Cause]:
    for key in obj.get("data") or {}:
        if not re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key):
            why = (
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
                "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
                "'[-._a-zA-Z0-9]+')"
            )
            yield Cause("FieldValueInvalid", f"data[{key}]", f'Invalid value: "{key}": {why}')


# What of a pod's spec may change after its creation; a node is bound once.
_CHANGEABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")


def forbidden_pod_changes(old: Object, new: Object) -> Iterator[Cause]:
    """Changes of a pod's spec other than of the few fields that may change."""
    if _fixed(old, old) != _fixed(new, old):
        message = (
            "pod updates may not change fields other than "
            "`spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it "
            "was previously negative)"
        )
        yield forbidden("spec", message)


def _fixed(pod: Object, old: Object) -> Object:
    spec: Object = objects.copy(pod.get("spec") or {})
    for field in _CHANGEABLE:
        spec.pop(field, None)
    before = old.get("spec") or {}
    if not before.get("nodeName"):
        spec.pop("nodeName", None)
    gates = before.get("schedulingGates") or []
    if all(gate in gates for gate in spec.get("schedulingGates") or []):
        # They may go, and none may come.
        spec.pop("schedulingGates", None)
    for group in ("containers", "initContainers"):
        for container in spec.get(group) or []:
            container.pop("image", None)
            container.pop("imagePullPolicy", None)
    return spec
