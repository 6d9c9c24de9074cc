"""Observes objects: a read, then a watch from there, again and again.

A watch is never taken to be complete: each is preceded by a read, a stream that brings nothing
for too long is closed, one that brings only bookmarks is confirmed by reads, and whatever ends a
stream leads to a new read.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from kfp_pytorch.launcher.errors import CannotObserve, StepError
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, Expired, Forbidden, StreamIdle
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.streams import WatchStream
from kfp_pytorch.launcher.waiting.limits import Limits

# A stream that lived for fewer seconds is counted as broken, even if it ended without an error.
_HEALTHY_AFTER = 5.0
CHANGES = ("ADDED", "MODIFIED", "DELETED")


@dataclass(frozen=True)
class Snapshot:
    """All that was there at a read."""

    items: list[Object]  # the objects
    took: float = 0.0  # how long the read took, in seconds; the server was unavailable meanwhile


@dataclass(frozen=True)
class Change:
    """One event of a watch."""

    kind: str  # ADDED, MODIFIED or DELETED
    obj: Object  # the object as it is, or as it was when it was deleted


@dataclass(frozen=True)
class ObservationFailed:
    """What is watched cannot be observed any more, and no retry can help."""

    error: StepError


Observation = Snapshot | Change | ObservationFailed


class Follower(threading.Thread, ABC):
    """Puts what it observes into a queue, until it is closed.

    Attributes:
        allowed: Whether it was ever allowed to read or watch: then a missing permission does not
            mean that the job never ran.
        needs_watch: Whether it fails where it may not watch; else reads suffice.
        confirmed_for: For how many seconds a watch that brings only bookmarks is trusted.
    """

    needs_watch = False
    confirmed_for = float("inf")

    def __init__(self, kube: Kube, put: Callable[[Observation], None], limits: Limits) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self.kube = kube
        self.limits = limits
        self._put = put
        self._closed = False
        self._wake = threading.Event()
        self._stream: WatchStream | None = None
        self._failures = 0
        self._version = self._observed = ""
        self._expired = False
        self._opening: queue.SimpleQueue[WatchStream | Exception | None] = queue.SimpleQueue()
        self._last_event_at = self._confirmed_at = time.monotonic()
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

    @property
    def streaming(self) -> bool:
        """Whether a watch is open that a change or a read, no bookmark, has confirmed lately."""
        lately = time.monotonic() - self._confirmed_at < 2 * self.limits.poll
        return self._stream is not None and lately

    def run(self) -> None:
        """Reads and watches, until closed or until no retry can help."""
        try:
            while not self._closed:
                self._round()
        except Forbidden as error:
            # A permission that was lost says nothing of the job, which may be alive.
            lost = CannotObserve(f"Could not observe it any more: {error.message}")
            self._put(ObservationFailed(lost if self.allowed else error))
        except StepError as error:
            self._put(ObservationFailed(error))
        except Exception as error:
            # Without this the step would wait for ever.
            message = f"{self.name} ended by an unexpected {type(error).__name__}: {error}"
            self._put(ObservationFailed(StepError(message)))
            raise

    def read_now(self) -> None:
        """Makes it read again now."""
        self._wake.set()
        self._opening.put(None)
        self._close_stream()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self.read_now()

    def _round(self) -> None:
        self._wake.clear()
        version = self._read_snapshot()
        started, silent = time.monotonic(), False
        try:
            # A bookmark is newer than an object that has not changed for long.
            self._watch("" if self._expired else self._version or version)
        except Expired:
            # Without a version the server begins with what is there.
            self._expired, self._version = True, ""
        except StreamIdle:
            silent = True
        except ApiError as error:
            if isinstance(error, Forbidden) and self.needs_watch:
                raise
        finally:
            self._close_stream()
        healthy = time.monotonic() - started >= _HEALTHY_AFTER and not silent
        if not self._wake.is_set():
            # It broke, and was not interrupted.
            self._failures = 0 if healthy else self._failures + 1
        self._wake.wait(self.pause(self._failures, silent))

    def _read_snapshot(self) -> str:
        """Reads what is there; returns the version to watch from."""
        asked = time.monotonic()
        items, version = self._read_with_retries()
        self._confirmed_at = time.monotonic()
        self._put(Snapshot(items, took=self._confirmed_at - asked))
        return version

    def _read_with_retries(self) -> tuple[list[Object], str]:
        """Reads, and retries after every error but a missing permission.

        The CRD may be being replaced, a server that starts may not know it yet, and a proxy may
        answer anything.
        """
        started = time.monotonic()
        while True:
            try:
                return self.read()
            except Forbidden:
                raise
            except ApiError as error:
                if time.monotonic() - started > self.limits.unavailability_budget or self._closed:
                    raise CannotObserve(f"Could not observe it: {error.message}") from error
                self._wake.wait(min(5.0, self.limits.poll))
                self._wake.clear()

    def _watch(self, version: str) -> None:
        self._stream = stream = self._open_interruptibly(version)
        if stream is None:
            return
        self._last_event_at, self.allowed = time.monotonic(), True
        if self._wake.is_set():
            return
        for kind, obj in stream:
            previous, self._last_event_at = self._last_event_at, time.monotonic()
            self._expired = False
            seen = str((obj.get("metadata") or {}).get("resourceVersion") or "")
            self._version = seen or self._version
            if kind in CHANGES:
                self._confirmed_at = self._last_event_at
                self._put(Change(kind, obj))
            elif not self._confirm(gap=self._last_event_at - previous):
                return

    def _confirm(self, gap: float) -> bool:
        """Reads again before a watch with only bookmarks has been trusted for too long.

        `gap`: the seconds between the last two bookmarks; the next may take as long. Returns
        whether the watch had missed nothing, and is to go on.
        """
        if self._last_event_at + gap < self._confirmed_at + self.confirmed_for:
            return True
        before = self._observed
        self._read_snapshot()
        return self._observed == before and not self._wake.is_set()

    def _open_interruptibly(self, version: str) -> WatchStream | None:
        """Opens a watch; None where `read_now` came first, as the headers may never come."""
        opening: queue.SimpleQueue[WatchStream | Exception | None] = queue.SimpleQueue()
        self._opening = opening
        abandoned = threading.Event()

        def open_watch() -> None:
            try:
                stream = self.open(version)
            except Exception as error:
                opening.put(error)
                return
            opening.put(stream)
            if abandoned.is_set():
                stream.close()

        threading.Thread(target=open_watch, daemon=True, name=f"{self.name} opens").start()
        opened = None if self._wake.is_set() else opening.get()
        if isinstance(opened, Exception):
            raise opened
        if opened is None:
            abandoned.set()
            while not opening.empty():
                late = opening.get()
                if isinstance(late, WatchStream):
                    late.close()
        return opened

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def backoff(failures: int, longest: float, spread: float) -> float:
    """A short time at first, then 0.1 s, and four times as much each time, with jitter.

    A server that restarts breaks the watches of all launchers at once.
    """
    if failures == 0:
        return min(longest, spread) * random.random()  # noqa: S311
    grown = 0.1 * 4.0 ** min(failures - 1, 10)
    shortest = 0.5 if grown < longest else 0.9
    return float(min(longest, grown) * random.uniform(shortest, 1.0))  # noqa: S311
