"""Locks on files; the kernel releases one when the last process that holds it has ended."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO, Any

_POLL_S = 0.02
# `is_held` takes the lock for a moment, too.
_MOMENT_S = 1.0


def take(file: IO[Any], *, within: float = _MOMENT_S) -> bool:
    """Locks a file for this process and for those that inherit it.

    The lock ends when the file is closed everywhere. `within`: seconds to wait for another process
    that releases it. Returns whether the lock was taken.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def share(file: IO[Any]) -> None:
    """Locks a file together with other processes that share it; waits for one that has it alone."""
    fcntl.flock(file, fcntl.LOCK_SH)


def take_alone(file: IO[Any]) -> bool:
    """Turns a shared lock into one that this process has alone; whether no other has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Whether any process has taken a file; no if there is none that this user can read."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
