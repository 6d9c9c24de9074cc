"""Reads from a pod's status how runs of the container that trains failed. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, parse_time
from kfp_pytorch.launcher.kubernetes.pod_status import container_status, is_terminating


@dataclass(frozen=True)
class FailedRun:
    """One run of the container that trains, which did not end in success."""

    node: int  # the node of the job that its pod is
    uid: str  # the pod's uid
    number: int  # how often the container had ended before, in this pod
    code: int  # what it ended with; -1 if that is not known
    reason: str  # the kubelet's word, such as `Error` or `OOMKilled`
    started: datetime | None
    finished: datetime | None
    asked: bool  # whether its pod was being deleted
    message: str  # its termination message; the log's end where it wrote none
    log: str = ""  # its last lines, where they were read

    @property
    def seconds(self) -> float | None:
        """How long it ran; None if that is not known."""
        if self.started is None or self.finished is None:
            return None
        return (self.finished - self.started).total_seconds()


def failed_runs(kind: JobKind, job: Object, pod: Object) -> Iterator[FailedRun]:
    """Yield those that the pod's status has: the last one, and the one before its restart."""
    status = container_status(pod, kind.container)
    restarts = int(status.get("restartCount") or 0)
    for number, part in ((restarts - 1, "lastState"), (restarts, "state")):
        end = dig(status, part, "terminated")
        if not isinstance(end, dict) or end.get("exitCode") == 0:
            continue
        code = end.get("exitCode")
        yield FailedRun(
            node=kind.node_of(job, pod),
            uid=str(dig(pod, "metadata", "uid") or ""),
            number=number,
            code=code if isinstance(code, int) else -1,
            reason=str(end.get("reason") or ""),
            started=parse_time(end.get("startedAt")),
            finished=parse_time(end.get("finishedAt")),
            asked=is_terminating(pod),
            message=str(end.get("message") or ""),
        )
