"""The local cluster on a machine that has no IPv4."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_pytorch.local import loopback

PROGRAM = Path(__file__).with_name("two_pods.py")
# In a network of its own, of which only ::1 is left.
WITHOUT_IPV4 = [
    *("unshare", "--net", "sh", "-c"),
    'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"',
    "--",
]


def test_the_first_address_that_can_be_bound_is_taken() -> None:
    ipv4, ipv6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
    unknown = (socket.AF_INET, "192.0.2.1")
    assert loopback.choose((ipv4, ipv6)) == ipv4
    assert loopback.choose((unknown, ipv4)) == ipv4
    # Where there is none, the error of the first says so when it is used.
    assert loopback.choose((unknown,)) == unknown


def test_a_job_of_two_pods_runs_without_ipv4(tmp_path: Path) -> None:
    try:
        subprocess.run([*WITHOUT_IPV4, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network without IPv4 can be made here: {error}")
    line = [*WITHOUT_IPV4, sys.executable, str(PROGRAM), str(tmp_path / "root")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("http://[::1]:")
    assert '"server": "http://[::1]:' in done.stdout
    assert done.stdout.split()[-1] == "Succeeded"
