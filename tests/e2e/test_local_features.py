"""Without Docker and a cluster: environment of a task, optional artifacts, exit handlers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PIPELINE = f"{Path(__file__).with_name('local_pipelines.py')}:cleaning"


def test_a_failure_is_told_after_what_an_exit_handler_cleans_up(cluster, tmp_path):
    command = [sys.executable, "-m", "kfp_pytorch.cli", "run", PIPELINE, "--local", "--json"]
    command += ["--root", str(cluster.root), "-p", f"marker={tmp_path}/cleaned"]
    # An empty PATH but for what the steps' own commands need: there is no docker to be found.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    told = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert "ValueError: here True is no good" in told["error"]
    assert (tmp_path / "cleaned").exists()
    statuses = {step["name"]: step["status"] for step in told["steps"]}
    assert statuses == {"look": "succeeded", "fail": "failed", "clean": "succeeded"}
