"""Reads Event objects. No I/O."""

from __future__ import annotations

from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.objects import Object

_SCALES_UP = "TriggeredScaleUp"
_DOES_NOT = "NotTriggerScaleUp"


def about(event: Object) -> Object:
    """Return the reference to the object that an event is about."""
    return event.get("involvedObject") or event.get("regarding") or {}


def event_object(event: Object) -> str:
    """Return the name of the object that an event is about."""
    return str(objects.dig(about(event), "name") or "")


def event_message(event: Object) -> str:
    """Return an event's message on one line."""
    return " ".join(str(event.get("message") or event.get("note") or "").split())


def autoscaler_message(events: list[Object]) -> str:
    """Return what the cluster autoscaler last reported of the pods; or an empty string."""
    for event in reversed(events):
        if event.get("reason") == _SCALES_UP:
            return f"the autoscaler is adding nodes ({event_message(event)})"
        if event.get("reason") == _DOES_NOT:
            return f"the autoscaler adds no node ({event_message(event)})"
    return ""
