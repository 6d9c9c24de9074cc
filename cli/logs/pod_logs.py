"""The log of a pod's container from the API, as long as the pod exists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.kubernetes import client
from kfp_pytorch.launcher.kubernetes.api_errors import (
    ApiError,
    Forbidden,
    NotFound,
    Refused,
    StreamIdle,
)
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import container_status, pod_phase
from kfp_pytorch.launcher.waiting.logs import NewLines

# Seconds until a pod is looked at again, and until a silent stream is opened anew.
_PAUSE, _IDLE = 1.0, 60.0
_ENDED = ("Succeeded", "Failed")


def read(kube: Kube, pod: str, container: str) -> Iterator[str]:
    """Yields the lines that there are now, those of the start before the current one first."""
    status = container_status(_find(kube, pod) or {}, container)
    if not _has_written(status):
        return
    if status.get("restartCount"):
        yield from _pieces(kube, pod, container, NewLines(), previous=True)
    yield from _pieces(kube, pod, container, NewLines(), previous=False)


def follow(kube: Kube, pod: str, container: str, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yields a container's lines over its restarts, and over those of the API server.

    `is_over`: whether the pod will not be made, or made again.
    """
    seen, run = NewLines(), ("", -1)
    while True:
        found = _find(kube, pod)
        if found is None and is_over():
            return
        status = container_status(found or {}, container)
        # Before its log is read: then all that it wrote is read.
        ended = found is not None and pod_phase(found) in _ENDED
        if found is not None and _has_written(status):
            current = (str(found["metadata"].get("uid")), int(status.get("restartCount") or 0))
            if current != run:
                rest = seen if current[0] == run[0] else NewLines()
                if current[1]:
                    yield from _pieces(kube, pod, container, rest, previous=True)
                # The next start has a new log, perhaps by another clock.
                seen, run = NewLines(), current
            try:
                stream = kube.follow_log(pod, container, since=seen.since, idle_timeout=_IDLE)
                yield from seen.filter(stream)
            except StreamIdle:
                continue
            except Forbidden:
                raise
            except ApiError:
                ended = False
        if ended:
            return
        time.sleep(_PAUSE)


def _find(kube: Kube, pod: str) -> Object | None:
    try:
        return kube.get(POD, pod)
    except NotFound:
        return None


def _has_written(status: Object) -> bool:
    """Whether there is a log: of a container that waits for its restart, of the start before."""
    states = (dig(status, "state", "running"), dig(status, "state", "terminated"))
    return any(each is not None for each in (*states, dig(status, "lastState", "terminated")))


def _pieces(
    kube: Kube, pod: str, container: str, seen: NewLines, *, previous: bool
) -> Iterator[str]:
    """A log, or the rest of one, in as many answers as it takes: one has its beginning alone."""
    while True:
        before = seen.last
        try:
            text = kube.read_log(
                pod, container, previous=previous, since=seen.since, timestamps=True
            )
        except (NotFound, Refused):
            # The kubelet has removed it.
            return
        # Not splitlines: a carriage return is part of its line.
        lines = text.removesuffix("\n").split("\n")
        is_whole = len(text.encode()) < client.MOST_OF_A_LOG
        yield from seen.filter((lines if is_whole else lines[:-1]) if text else [])
        if is_whole or seen.last == before:
            return
