"""Runs one command, and ends all of its descendants when it ends.

    python -I -S guard.py [--grace SECONDS] [--owner-fd FD] [--report-fd FD] [--to-all] -- COMMAND…

A program of the standard library alone, which starts quickly. It is the leader of a new session
and, on Linux, a *subreaper*: the parent of every orphan below it. So it finds daemons, and
processes with a session of their own, as torchrun's workers are.

It ends the command on SIGTERM, SIGINT or SIGHUP, and when the other end of the pipe FD
(`--owner-fd`) closes, as it does when its owner ends in any way. A byte from the pipe detaches the
command from its owner. The command gets SIGTERM; with `--to-all` so does every descendant. When it
has ended, or the grace period is over, the rest is killed. The grace period after the end of the
owner is at most `ORPHAN_GRACE`.

The exit status is the command's, or 128 + N when signal N ended it. `--report-fd` gets JSON lines:
`{"started": PID}`, then `{"exit": 3}` or `{"signal": 9}`; or, when the command could not be
started, `{"errno": 2}` alone (exit status 127).

macOS has no subreaper: a process that has a session of its own *and* whose parent has ended is not
found there.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

ORPHAN_GRACE = 2.0
"""The longest grace period, in seconds, for a command whose owner has ended."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SET_CHILD_SUBREAPER = 36
_SET_PDEATHSIG = 1


def parents() -> dict[int, int]:
    """Return the parent of every process of this machine: process id → parent's id."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 (pathlib doubles the start-up time)
        return _parents_by_ps()
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 (as above)
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as stat:  # noqa: PTH123
                    # The command, in brackets, may itself hold brackets and blanks.
                    found[int(entry)] = int(stat.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it has just ended
    return found


def _parents_by_ps() -> dict[int, int]:
    with os.popen("/bin/ps -axo pid=,ppid=") as listing:  # noqa: S605 (a constant)
        rows = [line.split() for line in listing]
    return {int(pid): int(parent) for pid, parent in rows}


def descendants(pid: int, of: dict[int, int] | None = None) -> list[int]:
    """Return every process below one, children first; `of` is what `parents()` returned."""
    children: dict[int, list[int]] = {}
    for child, parent in (parents() if of is None else of).items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        found += level
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _start(command: list[str]) -> int:
    """Fork and execute the command; returns its process id. Raises OSError: it cannot."""
    reader, writer = os.pipe()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        _execute(command, guard, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as failure:
        number = failure.read()
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), os.strerror(int(number)), command[0])
    return pid


def _execute(command: list[str], guard: int, failure: int) -> None:
    # The kernel kills the command when its guard is killed; if that was before this line, end now.
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(128 + signal.SIGKILL)
    for number in (*_ENDING, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        os.write(failure, str(error.errno).encode())
    os._exit(127)


def _reap(main: int) -> int | None:
    """Collect what has ended; returns the main child's wait status once it has."""
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == main:
            status = ended


def _kill_all() -> None:
    """Kill every descendant, also those that start meanwhile, and collect them."""
    while True:
        below = descendants(os.getpid())
        _send(below, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if below:
            time.sleep(0.005)


class _Guard:
    """The loop that waits for the command, for a signal, and for the owner's end."""

    def __init__(self, main: int, grace: float, owner: int, to_all: bool) -> None:
        self.main = main
        self.grace = grace
        self.owner = owner
        self.to_all = to_all
        self.deadline: float | None = None

    def wait(self, wakeup: int) -> int:
        """Wait for the main child, or for the end of its grace period; returns its wait status."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        if self.owner >= 0:
            poll.register(self.owner, select.POLLIN | select.POLLHUP)
        while True:
            status = _reap(self.main)
            if status is not None:
                return status
            if self.deadline is not None and time.monotonic() >= self.deadline:
                return signal.SIGKILL
            for descriptor, _ in poll.poll(self._milliseconds()):
                if descriptor == wakeup:
                    if set(os.read(wakeup, 512)) & set(_ENDING):
                        self._end(self.grace)
                else:
                    poll.unregister(self.owner)
                    if not os.read(self.owner, 512):
                        self._end(min(self.grace, ORPHAN_GRACE))
                    # Nobody can become an owner any more.
                    os.close(self.owner)

    def _milliseconds(self) -> float | None:
        return None if self.deadline is None else max(0, self.deadline - time.monotonic()) * 1000

    def _end(self, grace: float) -> None:
        _send(descendants(os.getpid()) if self.to_all else [self.main], signal.SIGTERM)
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)


def _wakeup_pipe() -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (*_ENDING, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def _report(descriptor: int, what: str, number: int) -> None:
    if descriptor >= 0:
        try:
            os.write(descriptor, b'{"%s": %d}\n' % (what.encode(), number))
        except OSError:
            return  # the owner has ended


def _options(arguments: list[str]) -> tuple[dict[str, float], list[str]]:
    options: dict[str, float] = {}
    rest = list(arguments)
    while rest and rest[0] != "--":
        name = rest.pop(0)
        if name == "--to-all":
            options[name] = 1
        elif name in ("--grace", "--owner-fd", "--report-fd") and rest:
            options[name] = float(rest.pop(0))
        else:
            raise SystemExit(f"guard: unknown option {name!r}; see the top of {__file__}")
    if len(rest) < 2:
        raise SystemExit("guard: no command after --")
    return options, rest[1:]


def main(arguments: list[str]) -> int:
    """Run the command under guard; returns the exit status."""
    options, command = _options(arguments)
    owner, report = int(options.get("--owner-fd", -1)), int(options.get("--report-fd", -1))
    for descriptor in (owner, report):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    if os.getpgrp() != os.getpid():
        os.setsid()  # a terminal's Ctrl-C is for the owner alone
    _prctl(_SET_CHILD_SUBREAPER, 1)
    wakeup = _wakeup_pipe()
    try:
        child = _start(command)
    except OSError as error:
        _report(report, "errno", error.errno or 0)
        return 127
    _report(report, "started", child)
    # Its copies of the command's pipes would keep them open when the command has ended.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    guard = _Guard(child, options.get("--grace", 10.0), owner, "--to-all" in options)
    status = guard.wait(wakeup)
    _kill_all()
    if os.WIFSIGNALED(status):
        _report(report, "signal", os.WTERMSIG(status))
        return 128 + os.WTERMSIG(status)
    _report(report, "exit", os.WEXITSTATUS(status))
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    # Without the interpreter's clean-up, for which others would wait.
    os._exit(main(sys.argv[1:]))
