"""Reads fields of Kubernetes objects in their JSON form, whatever is missing in them. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object in its JSON form."""


def name(obj: Object) -> str:
    """Return an object's name, or an empty string."""
    return str(dig(obj, "metadata", "name") or "")


def dig(obj: Any, *keys: str) -> Any:
    """Return what lies below these keys, or None where one is missing or no object."""
    for key in keys:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(key)
    return obj


def each(obj: Any, *keys: str) -> list[Object]:
    """Return the objects in the list below these keys; none where there is no list."""
    found = dig(obj, *keys)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def condition(obj: Object, wanted: str) -> Object:
    """Return a condition of an object by type, or an empty object.

    There should be one of a type. Of several, the one that changed last counts, and of those that
    changed at once one that is not True.
    """
    found = [c for c in each(obj, "status", "conditions") if c.get("type") == wanted]
    return max(found, key=_freshness, default={})


def parse_time(written: Any) -> datetime | None:
    """Read a time as Kubernetes writes it, in UTC where it names no zone; None if it is none."""
    try:
        read = datetime.fromisoformat(str(written).replace("Z", "+00:00"))
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _freshness(condition: Object) -> tuple[str, bool]:
    return str(condition.get("lastTransitionTime") or ""), condition.get("status") != "True"
