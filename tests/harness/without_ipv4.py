"""Runs a Python program in a network of its own that has ::1 and no IPv4."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PREFIX = [
    *("unshare", "--net", "sh", "-c"),
    'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"',
    "--",
]


def python(*arguments: str) -> str:
    """What Python prints on stdout with these arguments; skips where there is no such network."""
    try:
        subprocess.run([*_PREFIX, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network without IPv4 can be made here: {error}")
    line = [*_PREFIX, sys.executable, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
