"""What a step prints while it runs, on a stdout that may be broken."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from kfp_pytorch.launcher.constants import TERMINATION_LOG_ENV, TERMINATION_LOG_PATH
from kfp_pytorch.launcher.text import wrapped

# The kubelet keeps 4,096 bytes; KFP's own pods have several containers.
_MESSAGE_BYTES = 1024
# Colours and titles of terminals, and characters that move their cursor.
_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]"
)
_lock = threading.Lock()


def printable(text: str) -> str:
    """Make text that any file, terminal and UI can show, without control characters.

    A file's name that is not UTF-8 has half of a surrogate pair, which cannot be written.
    """
    return _writable(_CONTROLS.sub("", text))


def _writable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def log(text: str) -> None:
    """Prints a text with the time in UTC, wrapped for a viewer that cuts long lines off.

    A broken stdout does not end the step.
    """
    lines = wrapped(f"[{datetime.now(UTC):%H:%M:%S}] {text}", width=68, whole=0)
    write(lines.replace("\n", "\n  ") + "\n")


def write(text: str) -> None:
    """Writes text to stdout at once, whole lines of one thread at a time."""
    with _lock, contextlib.suppress(OSError, ValueError):
        sys.stdout.write(_writable(text))
        sys.stdout.flush()


def print_error(text: str) -> None:
    """Writes text to stderr at once."""
    with contextlib.suppress(OSError, ValueError):
        text = printable(text)
        sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
        sys.stderr.flush()


def write_termination_message(text: str) -> None:
    """Writes text to the step's own termination log, which Argo shows at the node in the UI."""
    path = Path(os.environ.get(TERMINATION_LOG_ENV) or TERMINATION_LOG_PATH)
    try:
        # The kubelet creates the file; outside of a pod there is none.
        with path.open("r+", encoding="utf-8") as file:
            file.write(printable(text).encode()[:_MESSAGE_BYTES].decode("utf-8", "ignore"))
            file.truncate()
    except OSError:
        return


def duration(seconds: float) -> str:
    """Format a duration for a person: `12 s`, `5 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours < 2:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 2 else f"{days} d {hours % 24} h"


class Progress:
    """Logs each new state at once, and one that lasts every few minutes.

    Attributes:
        every: Seconds between two lines while nothing changes.
    """

    def __init__(self, every: float) -> None:
        self.every = every
        self._state = ""
        self._since = self._logged = time.monotonic()

    def report(self, state: str, details: str = "") -> None:
        """Logs the state, if it is new or was last logged long ago.

        `state`: the state, such as `queued`; a new one is logged at once. `details`: text whose
        changes alone are not logged.
        """
        now, tail = time.monotonic(), f": {details}" if details else ""
        if state != self._state:
            self._state, self._since, self._logged = state, now, now
            log(f"{state}{tail}")
        elif now - self._logged >= self.every:
            self._logged = now
            log(f"still {state}, {duration(now - self._since)}{tail}")

    def next_due(self) -> float:
        """The monotonic time of the next line, if nothing changes."""
        return self._logged + self.every
