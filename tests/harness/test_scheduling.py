"""A run of the tests ends, and runs all of them, though workers die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "from harness.scheduling import pytest_configure, pytest_xdist_make_scheduler\n"
DIES = """
import os, signal, time, pytest

@pytest.mark.parametrize("number", range(4))
def test_of_a_worker_that_dies(number):
    if number == 1:
        {before}
        os.kill(os.getpid(), signal.SIGKILL)
"""
LIVES = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_that_passes(number):
    pass
"""


@pytest.mark.parametrize(
    "before",
    [
        "pass",
        pytest.param(
            "os.fork() or [time.sleep(0.1) for _ in range(3000) if not os.path.exists('over')]",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["alone", "while what it forked lives on"],
)
def test_a_worker_that_dies_fails_one_test_and_hangs_nothing(tmp_path: Path, before: str) -> None:
    files = {"conftest": CONFTEST, "test_a": DIES.format(before=before), "test_b": LIVES}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", str(tmp_path)]
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": tests}
    environment.pop("PYTEST_XDIST_WORKER", None)
    output = tmp_path / "output"
    with output.open("w") as file:
        # What is forked holds a pipe of ours, too: a file has no end to wait for.
        subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=file, stderr=file, timeout=240
        )
    (tmp_path / "over").touch()
    assert "1 failed, 7 passed" in output.read_text(), output.read_text()
