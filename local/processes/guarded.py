"""Starts processes under a guard, which ends them when this process ends."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_pytorch.local.processes import guard

_GUARD = str(Path(guard.__file__).resolve())


class Owner:
    """A pipe whose writing end this process alone has; guards inherit the reading end `fd`."""

    def __init__(self) -> None:
        self.fd, writer = os.pipe()
        self._writer = os.fdopen(writer, "wb", buffering=0)
        os.register_at_fork(after_in_child=self._writer.close)

    def detach(self) -> None:
        """Let the command of the one guard that has this owner outlive this process."""
        with self._writer:
            self._writer.write(b".")
        os.close(self.fd)


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
