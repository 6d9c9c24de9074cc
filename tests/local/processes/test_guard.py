"""The guard leaves nothing behind, however things end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kfp_pytorch.local.processes import guard, guarded

# Starts a process in a session of its own, whose parent then ends: a plain kill of the process
# group would miss it. Then prints that process's id and waits.
DAEMON = """
import os, signal, subprocess, sys, time
if {deaf}:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
middle = subprocess.Popen(
    [sys.executable, "-I", "-S", "-c",
     "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], start_new_session=True,"
     " stdout=subprocess.DEVNULL).pid, flush=True)"])
middle.wait()
{then}
"""


def run(code: str, *, grace: float = 10.0, to_all: bool = False) -> subprocess.Popen[str]:
    return guarded.popen(
        [sys.executable, "-I", "-S", "-c", code],
        grace=grace,
        to_all=to_all,
        stdout=subprocess.PIPE,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def gone(pid: int, seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def test_the_exit_status_is_the_commands() -> None:
    assert run("raise SystemExit(3)").wait() == 3
    assert run("pass").wait() == 0


def test_a_signal_that_ended_the_command_is_128_and_its_number() -> None:
    assert run("import os; os.kill(os.getpid(), 9)").wait() == 137


@pytest.mark.parametrize(
    ("code", "report"),
    [
        ("raise SystemExit(137)", '{"exit": 137}\n'),
        ("import os; os.kill(os.getpid(), 9)", '{"signal": 9}\n'),
    ],
)
def test_the_report_tells_an_exit_code_from_a_signal(code: str, report: str) -> None:
    reader, writer = os.pipe()
    line, fds = guarded.command([sys.executable, "-I", "-S", "-c", code], report_fd=writer)
    process = subprocess.Popen(line, pass_fds=fds)
    os.close(writer)
    with os.fdopen(reader) as stream:
        started, ended = stream.readlines()
    assert started.startswith('{"started": ')
    assert ended == report
    assert process.wait() == 137


def test_a_command_that_does_not_exist_is_reported_as_such() -> None:
    reader, writer = os.pipe()
    line, fds = guarded.command(["/no/such/command"], report_fd=writer)
    process = subprocess.Popen(line, pass_fds=fds)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == '{"errno": 2}\n'
    assert process.wait() == 127


def test_what_the_command_leaves_behind_ends_with_it() -> None:
    process = run(DAEMON.format(deaf=False, then=""))
    daemon = int(first_line(process))
    assert process.wait() == 0
    assert not alive(daemon)


def test_sigterm_ends_the_command_first_and_then_the_rest() -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); print('up'); time.sleep(600)"
    process = run(DAEMON.format(deaf=False, then=handler.replace("'up'", "'up', flush=True")))
    daemon = int(first_line(process))
    assert first_line(process) == "up"
    process.terminate()
    assert process.wait() == 5
    assert not alive(daemon)


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    process = run(DAEMON.format(deaf=True, then="time.sleep(600)"), grace=0.2)
    daemon = int(first_line(process))
    process.terminate()
    assert process.wait() == 137
    assert not alive(daemon)


def test_sigterm_reaches_every_descendant_if_asked(tmp_path: Path) -> None:
    mark = tmp_path / "told"
    grandchild = (
        f"import signal, sys, time, pathlib\n"
        f"signal.signal(15, lambda *_: (pathlib.Path({str(mark)!r}).touch(), sys.exit()))\n"
        f"print('up', flush=True)\ntime.sleep(600)"
    )
    code = (
        "import signal, subprocess, sys\nsignal.signal(15, lambda *_: None)\n"
        f"subprocess.run([sys.executable, '-c', {grandchild!r}], start_new_session=True)"
    )
    process = run(code, to_all=True)
    assert first_line(process) == "up"
    process.terminate()
    assert process.wait() == 0
    assert mark.exists()


def test_kill_9_of_the_owner_ends_everything() -> None:
    command = DAEMON.format(deaf=False, then="time.sleep(600)")
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from kfp_pytorch.local.processes import guarded\n"
            f"guarded.popen([sys.executable, '-c', {command!r}])\n"
            "time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    daemon = int(first_line(owner))
    below = guard.descendants(owner.pid)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert gone(daemon)
    assert len(below) >= 3
    assert all(gone(pid) for pid in below)


def test_a_detached_command_outlives_its_owner_until_sigterm() -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, time; from kfp_pytorch.local.processes import guarded\n"
            "owner = guarded.Owner()\n"
            "line, fds = guarded.command(['sleep', '600'], owner=owner)\n"
            "kept = subprocess.Popen(line, pass_fds=fds)\n"
            "owner.detach()\n"
            "print(kept.pid, guarded.popen(['sleep', '600']).pid, flush=True)\n"
            "time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    kept, owned = (int(word) for word in first_line(owner).split())
    owner.kill()
    owner.wait()
    assert gone(owned)
    while not (below := guard.descendants(kept)):
        time.sleep(0.01)
    (command,) = below
    os.kill(kept, signal.SIGTERM)
    assert gone(kept)
    assert gone(command)


def test_nobody_becomes_the_owner_of_what_has_been_detached(tmp_path: Path) -> None:
    owner = guarded.SharedOwner(tmp_path / "owners")
    # A guard that is slow to read what it is told.
    slow = threading.Timer(0.2, os.close, [os.dup(owner.fd)])
    owner.started()
    slow.start()
    owner.detach()
    assert guarded.SharedOwner.joined(tmp_path / "owners") is None


def test_kill_9_of_a_guard_is_made_good_by_the_guard_above_it() -> None:
    inner = DAEMON.format(deaf=False, then="time.sleep(600)")
    code = (
        "import sys; from kfp_pytorch.local.processes import guarded\n"
        f"inner = guarded.popen([sys.executable, '-c', {inner!r}])\n"
        "print(inner.pid, flush=True)\nsys.exit(inner.wait())"
    )
    outer = guarded.popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    lines = {int(first_line(outer)), int(first_line(outer))}
    (guard_pid,) = (pid for pid in lines if pid in guard.descendants(outer.pid)[:2])
    (daemon,) = lines - {guard_pid}
    os.kill(guard_pid, signal.SIGKILL)
    outer.wait()
    assert not alive(daemon)


def test_a_fork_of_the_owner_does_not_keep_the_command_alive() -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, sys, time; from kfp_pytorch.local.processes import guarded\n"
            "command = guarded.popen(['sleep', '600'])\n"
            "fork = os.fork()\n"
            "if fork: print(fork, command.pid, flush=True)\n"
            "time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    fork, command = (int(word) for word in first_line(owner).split())
    owner.kill()
    owner.wait()
    try:
        assert gone(command)
    finally:
        os.kill(fork, signal.SIGKILL)
