"""Statuses and their conditions, as controllers write them."""

from __future__ import annotations

from datetime import datetime

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api

ENDED_PHASES = ("Succeeded", "Failed")


def phase(pod: Object) -> str:
    """The pod's phase; empty while it has none."""
    return str((pod.get("status") or {}).get("phase") or "")


def is_ready(pod: Object) -> bool:
    """Whether a pod takes requests: its condition Ready is True and it is not being deleted."""
    return condition(pod, "Ready").get("status") == "True" and not objects.is_terminating(pod)


def condition(obj: Object, type_: str) -> Object:
    """An object's condition of a type; empty where it has none."""
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == type_), {})


def dated(new: Object, old: Object, now: datetime) -> Object:
    """A condition with its lastTransitionTime, which is the old one's while the status is."""
    since = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    return {**new, "lastTransitionTime": since or objects.timestamp(now)}


def write(api: Api, kind: Kind, obj: Object, status: Object) -> Object:
    """Write an object's status if it differs; returns the object. Raises ApiError: 404 or 409."""
    if status == (obj.get("status") or {}):
        return obj
    changed = {**objects.copy(obj), "status": objects.copy(status)}
    return api.update(kind, changed, subresource="status")
