"""Keeps objects in view: a read, then a watch from there, again and again.

A watch is never believed to be complete: each is preceded by a read, a stream that brings nothing
for too long is dead, and whatever ends a stream leads to a new read.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.launcher.errors import CannotObserve, StepError
from kfp_pytorch.launcher.kubernetes.api_errors import (
    ApiError,
    Expired,
    Forbidden,
    NotFound,
    StreamIdle,
    Unauthorized,
)
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.streams import WatchStream
from kfp_pytorch.launcher.waiting.limits import Limits

# A stream that lived for fewer seconds is counted as broken, however politely it ended.
_HEALTHY_AFTER = 5.0
# Over how many seconds launchers spread whose watches end at once. The job's end waits for the
# first.
_SPREAD = 0.4
_PODS_SPREAD = 2.0
# How long the server may take to tell what it remembers, in seconds.
_HISTORY = 2.0
_CHANGES = ("ADDED", "MODIFIED", "DELETED")


@dataclass(frozen=True)
class Snapshot:
    """All that was there at a read.

    Attributes:
        items: The objects.
        took: How long the read took, in seconds: for as long as the server was unavailable.
    """

    items: list[Object]
    took: float = 0.0


@dataclass(frozen=True)
class Change:
    """One event of a watch.

    Attributes:
        kind: ADDED, MODIFIED or DELETED.
        obj: The object as it is, or as it was when it was deleted.
    """

    kind: str
    obj: Object


@dataclass(frozen=True)
class ObservationFailed:
    """What is watched cannot be seen any more, for good."""

    error: StepError


Observation = Snapshot | Change | ObservationFailed


class Follower(threading.Thread, ABC):
    """Puts what it sees into a queue, until it is closed.

    Attributes:
        allowed: Whether it was ever let look; then a refusal is news of permissions alone.
    """

    def __init__(self, kube: Kube, put: Callable[[Observation], None], limits: Limits) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self.kube = kube
        self.limits = limits
        self._put = put
        self._closed = False
        self._wake = threading.Event()
        self._stream: WatchStream | None = None
        self._failures = 0
        self._version = ""
        self._expired = False
        self._last_event_at = time.monotonic()
        self.allowed = False

    @abstractmethod
    def read(self) -> tuple[list[Object], str]:
        """Reads what is there now, and the version to watch from."""

    @abstractmethod
    def open(self, version: str) -> WatchStream:
        """Opens a watch."""

    @abstractmethod
    def pause(self, failures: int, silent: bool) -> float:
        """How long to wait before the next read, after so many broken watches in a row."""

    @abstractmethod
    def can_retry_after(self, error: ApiError) -> bool:
        """Whether the watch may be tried again after this."""

    @property
    def streaming(self) -> bool:
        """Whether a watch is open that has not been silent for long."""
        return (
            self._stream is not None
            and time.monotonic() - self._last_event_at < self.limits.watch_idle
        )

    def run(self) -> None:
        """Reads and watches, until closed or blind for good."""
        try:
            while not self._closed:
                self._round()
        except (Unauthorized, Forbidden) as error:
            if isinstance(error, Forbidden) and not self.allowed:
                self._put(ObservationFailed(error))
                return
            # Lost meanwhile: it says nothing of what is watched, which may well be alive.
            self._put(
                ObservationFailed(CannotObserve(f"Could not observe it any more: {error.message}"))
            )
        except StepError as error:
            self._put(ObservationFailed(error))
        except Exception as error:
            # A thread that dies without a word would leave the step waiting for ever.
            words = f"{self.name} ended by an unexpected {type(error).__name__}: {error}"
            self._put(ObservationFailed(StepError(words)))
            raise

    def read_now(self) -> None:
        """Makes it read afresh now."""
        self._wake.set()
        self._close_stream()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self.read_now()

    def _round(self) -> None:
        self._wake.clear()
        asked = time.monotonic()
        items, version = self._read_with_retries()
        started, silent = time.monotonic(), False
        self._put(Snapshot(items, took=started - asked))
        try:
            # A bookmark is newer than an object that has not changed for long.
            self._watch("" if self._expired else self._version or version)
        except Expired:
            # Without a version the server begins with what is there.
            self._expired, self._version = True, ""
        except StreamIdle:
            silent = True
        except ApiError as error:
            if not self.can_retry_after(error):
                raise
        finally:
            self._close_stream()
        healthy = time.monotonic() - started >= _HEALTHY_AFTER and not silent
        if not self._wake.is_set():
            # It broke, and was not told to look.
            self._failures = 0 if healthy else self._failures + 1
        self._wake.wait(self.pause(self._failures, silent))

    def _read_with_retries(self) -> tuple[list[Object], str]:
        """Reads, again and again where the answer is an error that no permission would mend.

        The CRD may be on its way out and in again, a server that starts may not know it yet, and
        what stands before a server may answer anything.
        """
        started = time.monotonic()
        while True:
            try:
                return self.read()
            except (Forbidden, Unauthorized):
                raise
            except ApiError as error:
                if time.monotonic() - started > self.limits.unavailability_budget or self._closed:
                    raise CannotObserve(f"Could not observe it: {error.message}") from error
                self._wake.wait(min(5.0, self.limits.poll))
                self._wake.clear()

    def _watch(self, version: str) -> None:
        self._stream = stream = self.open(version)
        self._last_event_at, self.allowed = time.monotonic(), True
        if self._wake.is_set():
            return
        for kind, obj in stream:
            self._last_event_at = time.monotonic()
            self._expired = False
            seen = str((obj.get("metadata") or {}).get("resourceVersion") or "")
            self._version = seen or self._version
            if kind in _CHANGES:
                self._put(Change(kind, obj))

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class JobFollower(Follower):
    """Keeps one job in view; a snapshot without it means that the server says it is gone."""

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
        self._job_version = ""
        # The answer to the create, or the look before the adoption, is the first read.
        self._first: Object | None = job

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
        if version != self._job_version:
            # It changed while nobody watched: what came before is history.
            self._job_version = self._version = version
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
        return 0.0 if silent else _backoff(failures, self.limits.poll, _SPREAD)

    def can_retry_after(self, error: ApiError) -> bool:
        """Polls do without a watch, but not without permission to ask."""
        return not isinstance(error, Forbidden | Unauthorized)


class PodsFollower(Follower):
    """Keeps a job's pods in view: the operator may delete them before it says Failed.

    What it shows is for people and for early failure, not for the job's state. So where watches
    bring nothing, it rather looks seldom than often.
    """

    def __init__(
        self, kube: Kube, put: Callable[[Observation], None], limits: Limits, labels: str
    ) -> None:
        super().__init__(kube, put, limits)
        self._labels = labels

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
        """The job's state does not hang on it, so where watches break it looks but seldom."""
        return 0.0 if silent else _backoff(failures, self.limits.slow_interval, _PODS_SPREAD)

    def can_retry_after(self, error: ApiError) -> bool:
        """Reads alone will do."""
        return not isinstance(error, Unauthorized)


def history(
    kube: Kube, kind: Kind, *, version: str, name: str = "", labels: str = ""
) -> Iterator[tuple[str, Object]]:
    """Reads what the server remembers of what became of objects, for seconds at the most.

    Args:
        kube: The cluster.
        kind: Their kind.
        version: The resourceVersion to begin with.
        name: Only of the object of this name; empty for all.
        labels: A label selector; empty for all.

    Yields:
        Each change as (type, object); nothing more where it does not remember.
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
            if change in _CHANGES:
                yield change, obj
    except ApiError:
        return
    finally:
        if stream is not None:
            stream.close()


def _backoff(failures: int, longest: float, spread: float) -> float:
    """A moment at first, then 0.1 s, and four times as much each time, with jitter.

    A server that restarts breaks the watches of all launchers at once: they must not come back in
    step.
    """
    if failures == 0:
        return min(longest, spread) * random.random()  # noqa: S311
    grown = 0.1 * 4.0 ** min(failures - 1, 10)
    shortest = 0.5 if grown < longest else 0.9
    return float(min(longest, grown) * random.uniform(shortest, 1.0))  # noqa: S311
