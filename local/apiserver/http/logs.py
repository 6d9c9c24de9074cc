"""A container's log, from the files that the kubelet writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object, bad_request
from kfp_pytorch.local.apiserver.store.api import Api

# How often a followed log is looked at for more.
_POLL_S = 0.05
# Bytes read at once.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Options:
    """The options of a request for a log."""

    container: str = ""  # the container; empty for the only one
    follow: bool = False  # whether to send what is added until the container ends
    previous: bool = False  # the log of the container before the last restart
    timestamps: bool = False  # whether each line begins with its time
    since: datetime | None = None  # only lines from this time on
    tail: int | None = None  # only the last lines, as many as this
    limit: int | None = None  # only this many bytes


@dataclass(frozen=True)
class Source:
    """One run of one container, and where its log is."""

    pod: tuple[str, str, str]  # the pod's namespace, name and uid
    container: str  # the container's name
    restarts: int  # the restart count of this run
    path: Path  # the file; it need not be there yet


def source(root: Path, pod: Object, options: Options) -> Source | None:
    """The log that is asked for; None where no node has the pod yet. Raises ApiError: 400."""
    container = _container(pod, options.container)
    if not (pod.get("spec") or {}).get("nodeName"):
        return None
    identity = (objects.namespace(pod), objects.name(pod), objects.metadata(pod)["uid"])
    folder = root / "_".join(identity) / container
    restarts = _run(pod, container, folder, options.previous)
    return Source(identity, container, restarts, folder / f"{restarts}.log")


def _container(pod: Object, asked: str) -> str:
    spec, name = pod.get("spec") or {}, objects.name(pod)
    containers = [item["name"] for item in spec.get("containers") or []]
    init = [item["name"] for item in spec.get("initContainers") or []]
    if asked:
        if asked not in (*containers, *init):
            raise bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(containers) == 1:
        return str(containers[0])
    choices = f"choose one of: [{' '.join(containers)}]"
    if init:
        choices += f" or one of the init containers: [{' '.join(init)}]"
    raise bad_request(f"a container name must be specified for pod {name}, {choices}")


def _status(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    found = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return next((item for item in found if item.get("name") == container), {})


def _run(pod: Object, container: str, folder: Path, previous: bool) -> int:
    """Which run's log to read: the current one, or the one before."""
    status, name = _status(pod, container), objects.name(pod)
    state, last = status.get("state") or {}, status.get("lastState") or {}
    restarts = int(status.get("restartCount") or 0)
    written = sorted(int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())
    if previous:
        if not last.get("terminated"):
            raise bad_request(
                f'previous terminated container "{container}" in pod "{name}" not found'
            )
        running = "running" in state or "terminated" in state
        older = [run for run in written if run < restarts or not running]
        return older[-1] if older else restarts - 1
    if "running" in state or "terminated" in state:
        return restarts
    if last.get("terminated") and written:
        return written[-1]
    raise bad_request(_waiting(container, name, state.get("waiting") or {}))


def _waiting(container: str, pod: str, waiting: Object) -> str:
    reason = waiting.get("reason") or ""
    why = {
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }.get(reason, reason)
    subject = f'container "{container}" in pod "{pod}" is waiting to start'
    return f"{subject}: {why}" if why else f"{subject} - no logs yet"


async def read(api: Api, log: Source, options: Options) -> AsyncIterator[bytes]:
    """The log's bytes, in pieces, as they were asked for."""
    left = options.limit
    async for piece in _pieces(api, log, options):
        if left is not None:
            piece = piece[:left]
            left -= len(piece)
        if piece:
            yield piece
        if left == 0:
            return


async def _pieces(api: Api, log: Source, options: Options) -> AsyncIterator[bytes]:
    offset, ended, first = 0, False, True
    while True:
        # Asked before reading: what is written until the end is then surely read.
        ended = not options.follow or _ended(api, log)
        data, offset = _grown(log.path, offset, whole=not ended)
        # Not splitlines: a progress bar's carriage returns belong to its line.
        lines = _selected(re.findall(rb"[^\n]*\n|[^\n]+", data), options.since)
        if first and options.tail is not None:
            kept = list(lines)
            lines = iter(kept[max(0, len(kept) - options.tail) :])
        first = False
        yield b"".join(_shown(lines, options.timestamps))
        if ended:
            return
        if not data:
            await asyncio.sleep(_POLL_S)


def _ended(api: Api, log: Source) -> bool:
    namespace, name, uid = log.pod
    pod = api.find(POD, namespace, name)
    if pod is None or objects.metadata(pod)["uid"] != uid:
        return True
    status = _status(pod, log.container)
    if int(status.get("restartCount") or 0) != log.restarts:
        return True
    return "running" not in (status.get("state") or {})


def _grown(path: Path, offset: int, *, whole: bool) -> tuple[bytes, int]:
    """What a file has beyond an offset, and the offset after it; whole lines alone if asked."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return b"", offset
    if whole:
        data = data[: data.rfind(b"\n") + 1]
    return data, offset + len(data)


def _selected(lines: Iterable[bytes], since: datetime | None) -> Iterator[bytes]:
    for line in lines:
        if since is None or datetime.fromisoformat(line.partition(b" ")[0].decode()) >= since:
            yield line


def _shown(lines: Iterable[bytes], timestamps: bool) -> Iterator[bytes]:
    """Lines as a person reads them: the stream's name and the tag of a partial line removed."""
    partial = False
    for line in lines:
        time, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        prefix = time + b" " if timestamps and not partial else b""
        partial = tag == b"P"
        yield prefix + (text.rstrip(b"\n") if partial else text)


def since(api: Api, seconds: str, time: str) -> datetime | None:
    """The time of a query's `sinceSeconds` or `sinceTime`, or None. Raises ApiError: 400."""
    try:
        if seconds:
            return api.clock() - timedelta(seconds=int(seconds))
        return datetime.fromisoformat(time) if time else None
    except ValueError:
        shown = seconds or time
        raise bad_request(f'Invalid value: "{shown}": not seconds, nor an RFC 3339 time') from None
