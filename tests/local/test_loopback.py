"""The local cluster on a machine that has no IPv4."""

from __future__ import annotations

import socket
from pathlib import Path

from harness import without_ipv4

from kfp_pytorch.local import loopback

PROGRAM = Path(__file__).with_name("two_pods.py")


def test_the_first_address_that_can_be_bound_is_taken() -> None:
    ipv4, ipv6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
    unknown = (socket.AF_INET, "192.0.2.1")
    assert loopback.choose((ipv4, ipv6)) == ipv4
    assert loopback.choose((unknown, ipv4)) == ipv4
    # Where there is none, the error of the first says so when it is used.
    assert loopback.choose((unknown,)) == unknown


def test_a_job_of_two_pods_runs_without_ipv4(tmp_path: Path) -> None:
    printed = without_ipv4.python(str(PROGRAM), str(tmp_path / "root"))
    assert printed.startswith("http://[::1]:")
    assert '"server": "http://[::1]:' in printed
    assert printed.split()[-1] == "Succeeded"
