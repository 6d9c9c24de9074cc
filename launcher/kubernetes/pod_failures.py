"""Containers that crashed or cannot start, by a pod's status. No I/O.

Init containers count like any other: a worker's waits for the master's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import (
    container_statuses,
    is_sidecar,
    is_terminating,
    statuses,
)

# Only a change of the job helps.
_AT_ONCE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
# A registry may be unavailable for a while.
_PULL = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"),
        "SignatureValidationFailed",
    }
)
# A Secret or ConfigMap may be created a moment later than the pod.
_CONFIG = frozenset(
    {
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        *("PreCreateHookError", "PreStartHookError", "PostStartHookError", "CreatePodSandboxError"),
    }
)
# The command could not be executed.
_CANNOT_START = frozenset({"StartError", "ContainerCannotRun"})
# What runc, crun and gVisor say of a program that the image does not have, or not as a program.
_NO_PROGRAM = re.compile(
    r"executable file .*not found|error finding executable|exec format error|no command specified"
    r'|exec: "[^"]*": .*(?:no such file or directory|permission denied|is a directory)'
    r"|open executable: (?:no such file or directory|permission denied)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class StartupFailure:
    """A container that cannot start."""

    pod: str  # the pod's name
    container: str  # the container's name
    reason: str  # the kubelet's reason, such as `ImagePullBackOff`
    message: str  # the kubelet's message
    image: str  # the container's image

    def __str__(self) -> str:
        details = f": {self.message}" if self.message else ""
        where = f"container {self.container!r} of pod {self.pod!r}, image {self.image!r}"
        return f"{self.reason} ({where}){details}"


@dataclass(frozen=True, order=True)
class Crash:
    """One end of a container that was not a success.

    Attributes:
        restarted: Whether the container was started again, so that its log is the previous one.
        asked: Whether its pod was being deleted, so that the kubelet ended it.
    """

    pod: str  # the pod's name
    uid: str  # the pod's uid
    container: str  # the container's name
    number: int  # how often the container had ended before
    restarted: bool = field(default=False, compare=False)
    code: int = field(default=-1, compare=False)  # what it ended with; -1 if that is not known
    asked: bool = field(default=False, compare=False)


def startup_failures(pod: Object) -> Iterator[StartupFailure]:
    """Yields the containers of a pod that cannot start, init containers first.

    Those of a pod that is being deleted, such as by a queue, need not start.
    """
    if is_terminating(pod):
        return
    images = {c.get("name"): c.get("image", "") for c in _containers(pod)}
    for status in container_statuses(pod):
        if dig(status, "state", "running") is not None:
            # It has started by now.
            continue
        waiting = dig(status, "state", "waiting") or {}
        reason, message = str(waiting.get("reason") or ""), waiting.get("message", "")
        last = dig(status, "state", "terminated") or dig(status, "lastState", "terminated") or {}
        if reason not in _AT_ONCE | _PULL | _CONFIG and last.get("reason") in _CANNOT_START:
            reason, message = str(last["reason"]), last.get("message", message)
        if reason in _AT_ONCE | _PULL | _CONFIG | _CANNOT_START:
            name = str(status.get("name"))
            image = str(images.get(name) or status.get("image") or "")
            yield StartupFailure(pod["metadata"]["name"], name, reason, str(message or ""), image)


def crashes(pod: Object) -> Iterator[Crash]:
    """Yields the ends of a pod's containers that its status has and that were not a success."""
    metadata, over = pod["metadata"], _over(pod)
    for status in container_statuses(pod):
        restarts, name = int(status.get("restartCount") or 0), str(status.get("name"))
        if over and is_sidecar(pod, name):
            # The kubelet stops it when all others have ended.
            continue
        now = dig(status, "state", "terminated") or {}
        last = dig(status, "lastState", "terminated") or {}
        uid = str(metadata.get("uid", ""))
        if now and now.get("exitCode") != 0:
            yield Crash(
                metadata["name"], uid, name, restarts, code=_code(now), asked=is_terminating(pod)
            )
        if last and last.get("exitCode") != 0:
            started = dig(status, "state", "running") is not None or bool(now)
            yield Crash(
                metadata["name"], uid, name, restarts - 1, restarted=started, code=_code(last)
            )


def _over(pod: Object) -> bool:
    main = statuses(pod)
    return bool(main) and all(dig(status, "state", "terminated") for status in main)


def _code(end: Object) -> int:
    code = end.get("exitCode")
    return code if isinstance(code, int) else -1


def _containers(pod: Object) -> list[Object]:
    return [*objects.each(pod, "spec", "initContainers"), *objects.each(pod, "spec", "containers")]


@dataclass
class StartupFailures:
    """Remembers since when each container cannot start: a pod's status does not have that."""

    pull_grace: float = 120.0
    config_grace: float = 60.0
    _since: dict[tuple[str, str, float], float] = field(default_factory=dict)

    def fatal(self, pods: Iterable[Object], now: float) -> StartupFailure | None:
        """Return a startup failure that has lasted longer than its grace, or None."""
        current: dict[tuple[str, str, float], float] = {}
        worst: StartupFailure | None = None
        for pod in pods:
            for failure in startup_failures(pod):
                grace = self._grace(failure)
                key = (str(pod["metadata"].get("uid", "")), failure.container, grace)
                current[key] = self._since.get(key, now)
                if now - current[key] >= grace and worst is None:
                    worst = failure
        self._since = current
        return worst

    def reset(self) -> None:
        """Begins again: it could not be seen whether a failure was over."""
        self._since = {}

    def next_deadline(self) -> float | None:
        """The time at which a failure that lasts would become fatal, or None."""
        return min((since + key[2] for key, since in self._since.items()), default=None)

    def _grace(self, failure: StartupFailure) -> float:
        if failure.reason in _PULL:
            return self.pull_grace
        permanent = failure.reason in _AT_ONCE or _NO_PROGRAM.search(failure.message)
        return 0.0 if permanent else self.config_grace
