"""Starts processes under a guard, which ends them when this process ends."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_pytorch.local.processes import guard

_GUARD = str(Path(guard.__file__).resolve())
# A guard that is stopped reads nothing.
_DETACHED_WITHIN_MS = 10_000


class Owner:
    """A pipe whose writing end this process alone has; guards inherit the reading end `fd`."""

    def __init__(self) -> None:
        self.fd, writer = os.pipe()
        self._hold(writer)

    def _hold(self, writer: int) -> None:
        self._writer = os.fdopen(writer, "wb", buffering=0)
        os.register_at_fork(after_in_child=self._writer.close)

    def detach(self) -> None:
        """Let the command of the one guard that has this owner outlive this process."""
        with self._writer:
            self._writer.write(b".")
        os.close(self.fd)


class SharedOwner(Owner):
    """An owner that is a named pipe: several processes may have the writing end.

    The command of its guard ends when the last of them has ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        # A writing end can be opened only while there is a reading end.
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._hold(os.open(path, os.O_WRONLY))

    def started(self) -> None:
        """Leave the reading end to the guard alone, once it has inherited it."""
        os.close(self.fd)

    @classmethod
    def joined(cls, path: Path) -> SharedOwner | None:
        """Become one more owner; None where the command has been detached, or there is none."""
        try:
            writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return None
        owner = cls.__new__(cls)
        owner._hold(writer)
        return owner

    def detach(self) -> None:
        """Let the command outlive all of its owners; nobody becomes one after this."""
        # Another owner may have detached it.
        with self._writer, contextlib.suppress(BrokenPipeError):
            self._writer.write(b".")
            # The guard closes its end once it has read that.
            closed = select.poll()
            closed.register(self._writer, 0)
            closed.poll(_DETACHED_WITHIN_MS)

    def leave(self) -> None:
        """Stop to be an owner."""
        self._writer.close()


@functools.cache
def this_process() -> Owner:
    """Return the owner of the guards whose commands end with this process."""
    return Owner()


def command(
    argv: Sequence[str],
    *,
    grace: float = 10.0,
    to_all: bool = False,
    report_fd: int | None = None,
    owner: Owner | None = None,
) -> tuple[list[str], tuple[int, ...]]:
    """Return the command line that runs a command under a guard of this process.

    `grace`: seconds from SIGTERM to SIGKILL. `to_all`: whether SIGTERM is sent to every descendant,
    not to the command alone. `report_fd`: where the guard writes how the command ended (see
    `guard`). `owner`: for a command that may be detached; `this_process()` if None. Returns the
    command line, and the descriptors that the guard must inherit (`pass_fds`).
    """
    owner_fd = (owner or this_process()).fd
    # -I: the environment is the command's, not the guard's. -S: no packages, a quick start.
    line = [sys.executable, "-I", "-S", _GUARD, "--grace", str(grace)]
    line += ["--owner-fd", str(owner_fd)]
    fds: tuple[int, ...] = (owner_fd,)
    if to_all:
        line.append("--to-all")
    if report_fd is not None:
        line += ["--report-fd", str(report_fd)]
        fds += (report_fd,)
    return [*line, "--", *argv], fds


def popen(
    argv: Sequence[str],
    *,
    grace: float = 10.0,
    to_all: bool = False,
    pass_fds: Sequence[int] = (),
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a command under a guard of this process.

    When this process ends, also when it is killed, the command and its descendants end within
    `grace` or `guard.ORPHAN_GRACE` seconds, whichever is shorter. `terminate()` on the result ends
    them earlier.

    `grace`, `to_all`: as for `command`. `pass_fds`: as for `subprocess.Popen`; the guard has them
    open, too. `options`: others of `subprocess.Popen`, such as `env`; without `stdin` there is
    none. Returns the guard's process; its exit status is the command's, or 128 + N after signal N.
    """
    line, fds = command(argv, grace=grace, to_all=to_all)
    options = {"stdin": subprocess.DEVNULL, **options}
    fds += tuple(pass_fds)
    return subprocess.Popen(line, pass_fds=fds, start_new_session=True, text=True, **options)
