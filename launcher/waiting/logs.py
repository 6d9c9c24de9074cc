"""Streams the first node's log into the step's own, for a person to follow.

It is not where results come from. The API has only the current file of a container, a followed
log can become silent when the file is rotated, and a stream is resumed by whole seconds: so lines
have their times, and those that were shown are dropped by time and number.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, Forbidden, StreamIdle
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, name
from kfp_pytorch.launcher.kubernetes.streams import LEFT_OUT, LogStream
from kfp_pytorch.launcher.runtime.printing import write
from kfp_pytorch.launcher.waiting.limits import Limits

Timestamp = tuple[int, int]
"""Unix time in seconds, and nanoseconds."""
TAIL = 100


class NewLines:
    """Drops the lines of a resumed log that were shown before.

    Attributes:
        last: The time of the newest line shown, or None.
    """

    def __init__(self) -> None:
        self.last: Timestamp | None = None
        self._at_last, self._last_text = 0, ""

    @property
    def since(self) -> str:
        """Where to resume, in the API's format; empty for the beginning."""
        if self.last is None:
            return ""
        return datetime.fromtimestamp(self.last[0], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def filter(self, lines: Iterable[str]) -> Iterable[str]:
        """Yields the texts of the lines that are new.

        `lines`: the lines of one stream, each with its time and a blank before its text.
        """
        resumed, repeats, last = self.last, self._at_last, self._last_text
        # How much was left out of a long line is known only at its end.
        shown = last.rpartition(LEFT_OUT)[0] or last
        for line in lines:
            stamp, _, text = line.partition(" ")
            time = read_timestamp(stamp)
            if time is None:
                yield line
                continue
            if resumed is not None and time <= resumed:
                repeats -= time == resumed
                if time == resumed and not repeats and text.startswith(shown) and text != last:
                    # The stream ended within this line.
                    self._last_text = text
                    yield text[len(shown) :]
                    continue
                if time < resumed or repeats >= 0:
                    continue
            self._note(time, text)
            yield text

    def _note(self, time: Timestamp, text: str) -> None:
        if self.last is None or time > self.last:
            self.last, self._at_last, self._last_text = time, 1, text
        elif time == self.last:
            self._at_last, self._last_text = self._at_last + 1, text


def read_timestamp(stamp: str) -> Timestamp | None:
    """Reads an RFC 3339 time to the nanosecond, whatever its zone; None if it is none."""
    whole, dot, rest = stamp.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    zone = rest[len(digits) :] if dot else ""
    try:
        time = datetime.fromisoformat(whole + zone)
    except ValueError:
        return None
    if time.tzinfo is None:
        return None
    return int(time.timestamp()), int(digits.ljust(9, "0")[:9] or 0)


class LogFollower(threading.Thread):
    """Follows one container's log over its restarts, until closed.

    Attributes:
        note: What it could not do, or empty.
    """

    def __init__(
        self, kube: Kube, kind: JobKind, limits: Limits, ended: Callable[[], None]
    ) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self._kube = kube
        self._pod = self._prefix = ""
        self._kind = kind
        self._container = kind.container
        self._limits = limits
        self._ended = ended
        self._new_lines = NewLines()
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._wake = threading.Event()
        self._drained = threading.Event()
        self._closed = False
        self._stream: LogStream | None = None
        self._run: tuple[str, int] | None = None
        self._rest_of_previous = False
        self.note = ""

    def container_started(self, pod: Object, restarts: int) -> None:
        """Starts to follow the container, or its next run.

        `pod`: the pod. One with another uid was recreated, and counts its restarts from 0.
        `restarts`: how often the container had been restarted before.
        """
        role, index = self._kind.replica(pod)
        self._pod, uid = name(pod), str(pod["metadata"].get("uid") or "")
        self._prefix = f"{role}-{index}" if role else self._pod
        if not self._run:
            self._run = (uid, restarts)
            self.start()
        elif uid != self._run[0] or restarts > self._run[1]:
            self._run, self._rest_of_previous = (uid, restarts), True
            self._wake.set()

    def tail(self) -> str:
        """The last lines that were shown."""
        return "\n".join(list(self._tail))

    def finish(self, within: float) -> None:
        """Shows what is left of the log of a container that has ended, then closes.

        `within`: the seconds that this may take.
        """
        if self.is_alive():
            self._wake.set()
            self._drained.wait(within)
        self.close()

    def close(self) -> None:
        """Ends it."""
        self._closed = True
        self._wake.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def run(self) -> None:
        """Follows the log, again after each end of a stream."""
        pause, idle_timeout = 1.0, self._limits.log_idle
        while not self._closed:
            self._wake.clear()
            self._drained.clear()
            shown = self._new_lines.last
            try:
                self._previous()
                self._follow(idle_timeout)
                self._drained.set()
                self._ended()
            except StreamIdle:
                # The file was rotated, or nothing is written: a new stream shows which.
                quiet = self._new_lines.last == shown
                longer = min(2 * idle_timeout, self._limits.pods_watch_lifetime)
                idle_timeout = longer if quiet else self._limits.log_idle
                continue
            except Forbidden as error:
                self.note = f"The log of {self._pod} could not be followed: {error.message}"
                return
            except StepError:
                self._drained.set()
            moved = self._new_lines.last != shown
            idle_timeout = self._limits.log_idle if moved else idle_timeout
            pause = 1.0 if moved else min(2 * max(pause, 0.5), self._limits.slow_interval)
            # Many launchers may have lost their streams at once.
            self._wake.wait(pause * random.uniform(0.1, 2.0))  # noqa: S311

    def _previous(self) -> None:
        """Shows what the container before the last restart wrote after the stream broke."""
        if not self._rest_of_previous:
            return
        self._rest_of_previous = False
        try:
            text = self._kube.read_log(
                self._pod,
                self._container,
                previous=True,
                since=self._new_lines.since,
                timestamps=True,
            )
            # Not splitlines: a carriage return is part of its line.
            self._show(text.removesuffix("\n").split("\n"))
        except ApiError:
            # It was removed; the current log matters more.
            return
        finally:
            # The next container has a new log, perhaps by another clock.
            self._new_lines = NewLines()

    def _follow(self, idle_timeout: float) -> None:
        self._stream = stream = self._kube.stream_log(
            self._pod, self._container, since=self._new_lines.since, idle_timeout=idle_timeout
        )
        try:
            self._show(stream)
        finally:
            self._stream = None
            stream.close()

    def _show(self, lines: Iterable[str]) -> None:
        for text in self._new_lines.filter(lines):
            if self._closed:
                return
            self._tail.append(text)
            write(f"{self._prefix} | {text}\n")
