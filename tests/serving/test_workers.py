"""Several workers at one port."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import urllib3

V1 = "/v1/models/digits:predict"
BODY = {"instances": [[[[1] * 4] * 4]]}

pytestmark = pytest.mark.slow


def workers(server: Any) -> set[int]:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return {int(pid) for pid in children.read_text().split()}


def ask(server: Any) -> int:
    """A request over a connection of its own: any of the workers may get it."""
    address = f"http://127.0.0.1:{server.port}{V1}"
    with urllib3.PoolManager(retries=False, timeout=60) as http:
        return int(http.request("POST", address, json=BODY).status)


def test_a_worker_that_is_killed_is_replaced_and_the_others_answer(
    started: Any, exported: Path
) -> None:
    server = started(exported, "--workers", "2")
    server.wait_ready()
    before = workers(server)
    assert len(before) == 2
    victim = min(before)
    for pid in before:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"OMP_NUM_THREADS=1\0" in environ
    os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + 120
    replaced: set[int] = set()
    while len(replaced) < 2 or victim in replaced:
        assert time.monotonic() < deadline
        # What the killed one had accepted is lost; nothing else is.
        assert ask(server) == 200
        replaced = workers(server)
    assert len(replaced & before) == 1
    page = server.http.request("GET", "/metrics").data.decode()
    counted = re.search(r'requests_total\{[^}]*status="200"\} (\S+)', page)
    assert counted is not None
    assert float(counted[1]) > 0
    server.process.send_signal(signal.SIGTERM)
    output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 0
    assert f"worker {victim} ended with -9; another is started" in output
    assert "Traceback" not in output


def test_workers_that_cannot_serve_end_with_their_reason(started: Any, tmp_path: Path) -> None:
    server = started(tmp_path, "--workers", "2")
    output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 1
    assert "The directory is empty: is the storage URI right?" in output


def test_an_address_that_is_taken_ends_them_before_they_begin(started: Any, exported: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = started(exported, "--workers", "2", "--http_port", str(port))
        output, _ = server.process.communicate(timeout=120)
    assert server.process.returncode == 1
    assert output.startswith(f"error: 127.0.0.1:{port} cannot be listened at")


def test_workers_end_when_their_supervisor_is_killed(started: Any, exported: Path) -> None:
    server = started(exported, "--workers", "2")
    server.wait_ready()
    server.process.kill()
    # Its output ends with the last process that may write to it.
    server.process.communicate(timeout=60)
    assert server.process.returncode == -signal.SIGKILL
