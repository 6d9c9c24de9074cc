"""Where temporary files go, so that programs can put Unix sockets among them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# The path of a socket has at most 107 bytes; a program needs about 60 for names of its own.
_LONGEST = 40
_SHORT = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 (folders are made in it)


def short_folder(*preferred: Path) -> Path:
    """A folder to make temporary folders in, whose path leaves room for names of sockets.

    Those that are preferred come first, and are made; then that of the system, then /tmp.
    """
    system = Path(tempfile.gettempdir())
    for folder in (*preferred, system, *_SHORT):
        if len(os.fsencode(folder)) <= _LONGEST:
            if folder in preferred:
                folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
    return system
