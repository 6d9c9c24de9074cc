"""The log of a pod's container from the API, as long as the pod exists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.kubernetes.api_errors import (
    NotFound,
    Refused,
    StreamIdle,
    Transient,
)
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import (
    container_status,
    pod_phase,
    reason_not_running,
)
from kfp_pytorch.launcher.waiting.logs import NewLines

# Seconds until a pod is looked at again, and until a silent stream is opened anew.
_PAUSE, _IDLE = 1.0, 60.0
# How often a log is asked for in a row without a line.
_TRIES = 5
# In bytes. A terminal is no place for more, and a file may be.
_LONGEST_LINE = 16 << 20


def read(kube: Kube, pod: str, container: str) -> Iterator[str]:
    """Yields the lines that there are now, those of the start before the current one first.

    Raises StepError: the log cannot be read.
    """
    for previous in _logs(container_status(_find(kube, pod) or {}, container)):
        yield from _whole(kube, pod, container, NewLines(), previous=previous)


def follow(
    kube: Kube, pod: str, container: str, is_over: Callable[[], bool], tell: Callable[[str], None]
) -> Iterator[str]:
    """Yields a container's lines over its restarts, and over those of the API server.

    `is_over`: whether the pod will not be made, or made again. `tell`: says why there are none.
    """
    seen, run, told, failures = NewLines(), ("", -1), {""}, 0
    while True:
        found = _find(kube, pod)
        if found is None and is_over():
            return
        status = container_status(found or {}, container)
        # Before its log is read: then all that it wrote is read.
        ended = found is not None and _has_ended(found, is_over)
        if found is not None and (logs := _logs(status)):
            current = (str(found["metadata"].get("uid")), int(status.get("restartCount") or 0))
            if current != run:
                rest = seen if current[0] == run[0] else NewLines()
                if True in logs:
                    yield from _whole(kube, pod, container, rest, previous=True)
                # The next start has a new log, perhaps by another clock.
                seen, run = NewLines(), current
            try:
                yield from _lines(kube, pod, container, seen)
                failures = 0
            except StreamIdle:
                continue
            except (NotFound, Refused, Transient) as error:
                ended, failures = False, failures + 1
                if failures == _TRIES:
                    tell(f"The log of {pod} cannot be read now: {error.message}")
        if ended:
            return
        why = reason_not_running(found or {})
        if why not in told:
            told.add(why)
            tell(f"{pod} does not run: {why}")
        time.sleep(_PAUSE)


def _find(kube: Kube, pod: str) -> Object | None:
    try:
        return kube.get(POD, pod)
    except NotFound:
        return None


def _has_ended(pod: Object, is_over: Callable[[], bool]) -> bool:
    """Whether it writes no more; one that failed may be made again while its job lasts."""
    phase = pod_phase(pod)
    return phase == "Succeeded" or (phase == "Failed" and is_over())


def _logs(status: Object) -> list[bool]:
    """The logs that a container has, the oldest first: whether each is the previous one.

    The kubelet gives the last start's log for the current one of a container that waits.
    """
    if any(dig(status, "state", state) is not None for state in ("running", "terminated")):
        return [True, False] if status.get("restartCount") else [False]
    return [False] if dig(status, "lastState", "terminated") is not None else []


def _whole(
    kube: Kube, pod: str, container: str, seen: NewLines, *, previous: bool
) -> Iterator[str]:
    """A log, or the rest of one; nothing where the kubelet has removed it."""
    failures = 0
    while True:
        before = seen.last
        try:
            yield from _lines(kube, pod, container, seen, previous=previous, follow=False)
        except (NotFound, Refused):
            return
        except Transient:
            failures = failures + 1 if seen.last == before else 1
            if failures == _TRIES:
                raise
        else:
            return
        time.sleep(_PAUSE)


def _lines(
    kube: Kube,
    pod: str,
    container: str,
    seen: NewLines,
    *,
    previous: bool = False,
    follow: bool = True,
) -> Iterator[str]:
    stream = kube.stream_log(
        pod,
        container,
        since=seen.since,
        idle_timeout=_IDLE,
        previous=previous,
        follow=follow,
        longest_line=_LONGEST_LINE,
    )
    yield from seen.filter(stream)
