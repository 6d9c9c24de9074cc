"""Locks on files, which end with the last process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO, Any

_BEAT_S = 0.02
# Whoever asks `is_held` holds the lock for a moment, too: on a busy machine, a longer one.
_MOMENT_S = 1.0


def take(file: IO[Any], *, within: float = _MOMENT_S) -> bool:
    """Locks a file for this process and for those that inherit it.

    Args:
        file: The open file; the lock ends when it is closed everywhere.
        within: Seconds that another process may take to let go of it.

    Returns:
        Whether the lock was taken; False when another process holds it.
    """
    deadline = time.monotonic() + within
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_BEAT_S)
        else:
            return True


def is_held(path: Path) -> bool:
    """Whether any process has taken a file.

    Args:
        path: The file.

    Returns:
        False, too, when there is no such file, or none that this user can read.
    """
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
