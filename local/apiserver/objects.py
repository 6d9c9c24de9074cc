"""Readers of objects in their JSON form, and how they are copied."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver.errors import Object

T = TypeVar("T")
Clock = Callable[[], datetime]
"""Returns the time, in UTC."""

# The letters and digits of Kubernetes' own name generator.
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH = 5
_LONGEST_GENERATED = 63


def copy(value: T) -> T:
    """A deep copy of a JSON value, faster than `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy(item) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, list | tuple):
        return [copy(item) for item in value]  # type: ignore[return-value]
    return value


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(UTC)


def timestamp(time: datetime) -> str:
    """A time as the `metav1.Time` of the API: RFC 3339, whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata(obj: Object) -> Object:
    """The object's metadata; empty where it has none that can be read."""
    found = obj.get("metadata")
    return found if isinstance(found, dict) else {}


def name(obj: Object) -> str:
    """The object's name, or an empty string."""
    return str(metadata(obj).get("name") or "")


def namespace(obj: Object) -> str:
    """The object's namespace, or an empty string."""
    return str(metadata(obj).get("namespace") or "")


def labels(obj: Object) -> dict[str, str]:
    """The object's labels."""
    return metadata(obj).get("labels") or {}


def finalizers(obj: Object) -> list[str]:
    """The object's finalizers."""
    return list(metadata(obj).get("finalizers") or [])


def owners(obj: Object) -> list[Object]:
    """The object's owner references."""
    return list(metadata(obj).get("ownerReferences") or [])


def controlled(kind: Kind, meta: Object, spec: Object, owner: Object, owner_kind: Kind) -> Object:
    """An object that `owner` controls, in its namespace; `meta` is the rest of its metadata."""
    return {**controlled_by(owner, owner_kind, kind, meta), "spec": spec}


def controlled_by(owner: Object, owner_kind: Kind, kind: Kind, meta: Object) -> Object:
    """Type and metadata of an object that `owner` controls; as for `controlled`."""
    reference = {
        "apiVersion": owner_kind.api_version,
        "kind": owner_kind.kind,
        "name": name(owner),
        "uid": metadata(owner)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {**meta, "namespace": namespace(owner), "ownerReferences": [reference]},
    }


def is_controlled_by(obj: Object, owner: Object) -> bool:
    """Whether an object has a controller reference to another."""
    uid = metadata(owner)["uid"]
    return any(each.get("controller") and each["uid"] == uid for each in owners(obj))


def is_terminating(obj: Object) -> bool:
    """Whether the object has a deletionTimestamp."""
    return "deletionTimestamp" in metadata(obj)


def generated_name(prefix: str) -> str:
    """A name from `generateName`: the prefix and five random characters."""
    suffix = "".join(random.choices(_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))  # noqa: S311
    return prefix[: _LONGEST_GENERATED - _SUFFIX_LENGTH] + suffix


def compact(value: Any) -> Any:
    """The value without the fields of mappings that are null, at any depth."""
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [compact(item) for item in value]
    return value
