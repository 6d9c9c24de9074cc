"""The `kfp-pytorch` command as a process, and what it leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "kfp_pytorch.cli"]


def start(*arguments, root):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def invoke(*arguments, root):
    with start(*arguments, root=root) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def left_of(folder):
    """The command lines of processes that have this folder in theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for(process, text):
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"it ended without {text!r}")
