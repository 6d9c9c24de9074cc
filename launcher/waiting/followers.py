"""Observes a job, and a job's pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.streams import WatchStream
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.launcher.waiting.watch import CHANGES, Change, Follower, Observation, backoff

# Over how many seconds launchers are spread whose watches end at once. The first delays how soon a
# job's end is seen.
_SPREAD = 0.4
_PODS_SPREAD = 2.0
# How long the server may take to send its history, in seconds.
_HISTORY = 2.0


class JobFollower(Follower):
    """Observes one job; a snapshot without it means that it does not exist any more."""

    needs_watch = True

    def __init__(
        self,
        kube: Kube,
        put: Callable[[Observation], None],
        limits: Limits,
        kind: Kind,
        job: Object,
    ) -> None:
        super().__init__(kube, put, limits)
        self._kind = kind
        self._job_name = str(job["metadata"]["name"])
        self._uid = job["metadata"].get("uid")
        # The answer to the create, or the read before the adoption, is the first read.
        self._first: Object | None = job
        # An end that only a read shows is seen within this time.
        self.confirmed_for = limits.watch_idle

    def read(self) -> tuple[list[Object], str]:
        """Reads the job. Only a well-formed NotFound counts as its absence."""
        try:
            job = self._first or self.kube.get(self._kind, self._job_name)
        except NotFound:
            self._recall()
            return [], ""
        self._first = None
        if (job["metadata"].get("uid") or self._uid) != self._uid:
            self._recall()
        version = str(job["metadata"].get("resourceVersion") or "")
        if version != self._observed:
            # It changed while there was no watch.
            self._observed = self._version = version
        return [job], version

    def _recall(self) -> None:
        """Learns from the server's history how a job ended that is gone since the last watch."""
        version, name = self._version, self._job_name
        for change, obj in history(self.kube, self._kind, version=version, name=name):
            self._put(Change(change, obj))
            if change == "DELETED":
                return

    def open(self, version: str) -> WatchStream:
        """Opens a watch on the one job."""
        return self.kube.watch(
            self._kind,
            name=self._job_name,
            resource_version=version,
            idle_timeout=self.limits.watch_idle,
            lifetime=self.limits.watch_lifetime,
        )

    def pause(self, failures: int, silent: bool) -> float:
        """Polls take the place of watches that break."""
        return 0.0 if silent else backoff(failures, self.limits.poll, _SPREAD)


class PodsFollower(Follower):
    """Observes a job's pods: the operator may delete them before it says Failed.

    They are for people and for early failure, not for the job's state. So they are read seldom
    where watches bring nothing.
    """

    def __init__(
        self, kube: Kube, put: Callable[[Observation], None], limits: Limits, labels: str
    ) -> None:
        super().__init__(kube, put, limits)
        self._labels = labels
        # While not all run, when a log ends and when the job changes, they are read anyway.
        self.confirmed_for = limits.slow_interval

    def read(self) -> tuple[list[Object], str]:
        """Lists the pods."""
        found = self.kube.list_at(POD, labels=self._labels)
        self.allowed = True
        return found

    def open(self, version: str) -> WatchStream:
        """Opens a watch on the pods."""
        return self.kube.watch(
            POD,
            labels=self._labels,
            resource_version=version,
            # The server ends it first, if it is still there.
            idle_timeout=1.1 * self.limits.pods_watch_lifetime,
            lifetime=self.limits.pods_watch_lifetime,
        )

    def pause(self, failures: int, silent: bool) -> float:
        """The job's state does not depend on it, so it is read seldom where watches break."""
        return 0.0 if silent else backoff(failures, self.limits.slow_interval, _PODS_SPREAD)


def history(
    kube: Kube, kind: Kind, *, version: str, name: str = "", labels: str = ""
) -> Iterator[tuple[str, Object]]:
    """Reads what the server's history has of objects, for seconds at the most.

    `name`: only of the object of this name; empty for all. `labels`: a label selector; empty for
    all. Yields each change as (type, object); nothing more where the history does not reach so far.
    """
    stream = None
    try:
        stream = kube.watch(
            kind,
            name=name,
            labels=labels,
            resource_version=version,
            idle_timeout=_HISTORY,
            lifetime=_HISTORY,
        )
        for change, obj in stream:
            if change in CHANGES:
                yield change, obj
    except ApiError:
        return
    finally:
        if stream is not None:
            stream.close()
