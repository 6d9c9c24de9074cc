"""How far the pods of a new revision have come, for a person who watches. No I/O."""

from __future__ import annotations

import re

from kfp_pytorch.launcher.kserve.names import INITIALIZER
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_message
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

PENDING, STARTING = "pending", "starting"
_FETCHING, _LOADING = "fetching the model", "loading the model"
_IMAGE = re.compile(r'image "([^"]+)"')


def phase(pods: list[Object]) -> str:
    """Return what the pods do that has come the least far; empty where there are none."""
    found = {_phase(pod) for pod in pods}
    return next((each for each in (PENDING, STARTING, _FETCHING, _LOADING) if each in found), "")


def _phase(pod: Object) -> str:
    if objects.condition(pod, "PodScheduled").get("status") == "False":
        return PENDING
    for status in pod_status.container_statuses(pod):
        if dig(status, "state", "running") is not None and status.get("ready") is not True:
            return _FETCHING if status.get("name") == INITIALIZER else _LOADING
    return "" if pod_status.is_ready(pod) else STARTING


def images_being_pulled(events: list[Object]) -> list[str]:
    """Return the images whose pull has begun and not ended, by a pod's events."""
    pulling, pulled = (
        {
            match[1]
            for event in events
            if event.get("reason") == reason
            for match in [_IMAGE.search(event_message(event))]
            if match
        }
        for reason in ("Pulling", "Pulled")
    )
    return sorted(pulling - pulled)
