"""Without Docker and a cluster: environment of a task, optional artifacts, exit handlers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.local_cluster

FILE = Path(__file__).with_name("local_pipelines.py")


def run_local(root, pipeline, home, *options):
    command = [sys.executable, "-m", "kfp_pytorch.cli", "run", f"{FILE}:{pipeline}", "--local"]
    command += ["--json", "--root", str(root), *options]
    # An empty PATH but for what the steps' own commands need: there is no docker to be found.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    return ran, json.loads(ran.stdout)


def test_a_failure_is_told_after_what_an_exit_handler_cleans_up(cluster, tmp_path):
    ran, told = run_local(cluster.root, "cleaning", tmp_path, "-p", f"marker={tmp_path}/cleaned")
    assert ran.returncode == 1
    assert "ValueError: here True is no good" in told["error"]
    assert (tmp_path / "cleaned").exists()
    statuses = {step["name"]: step["status"] for step in told["steps"]}
    assert statuses == {"look": "succeeded", "fail": "failed", "clean": "succeeded"}


def test_a_container_component_is_refused_before_any_step_runs(tmp_path):
    root = tmp_path / "root"
    ran, told = run_local(root, "echoing", tmp_path, "-p", f"marker={tmp_path}/done")
    assert ran.returncode == 1
    assert "echoing: step echo cannot run on this machine" in told["error"]
    assert "lightweight Python component" in told["error"]
    assert not (tmp_path / "done").exists()
    assert not root.exists()


def test_settings_of_pods_that_have_no_effect_here_are_told_before_the_run(cluster, tmp_path):
    ran, told = run_local(cluster.root, "secretive", tmp_path)
    assert told["status"] == "succeeded"
    warned = [line for line in ran.stderr.splitlines() if line.startswith("Warning")]
    assert len(warned) == 1
    assert warned[0].startswith("Warning: step look: what kfp.kubernetes sets")
    assert "this machine: secretAsEnv. Where it is for training pods" in warned[0]
    assert ran.stderr.index("Warning: step look") < ran.stderr.index("look: started")
