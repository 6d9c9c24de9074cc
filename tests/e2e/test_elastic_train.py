"""The shipped pipeline for spot nodes: the first worker's node is lost, and the model is served."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.elastic_job import Job, names

pytestmark = [pytest.mark.slow, pytest.mark.local_cluster, pytest.mark.timeout(1500)]


def test_training_outlives_the_worker_that_all_meet_at_and_its_model_is_served(
    cluster: Any, tmp_path: Path
) -> None:
    known = names(cluster)
    command = [sys.executable, "-m", "kfp_pytorch.cli", "run", "elastic_train", "--local", "--json"]
    command += ["--root", str(cluster.root), "-p", "service_name=elastic-classifier"]
    command += ["-p", "epochs=60", "-p", "max_nodes=2", "-p", "checkpoint_every_steps=20"]
    with (tmp_path / "stderr").open("w") as told:
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
    try:
        job = Job(cluster, known)
        job.until_logged("epoch=1 ")
        job.kill(0)
        job.until_logged("going on from ")
        stdout, _ = run.communicate()
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, (tmp_path / "stderr").read_text()
    summary = json.loads(stdout)
    assert summary["metrics"]["accuracy"] >= 0.97
    # The job itself went on, and no other took its place.
    assert names(cluster) - known == {job.name}
    template = job.object["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert {"cloud.google.com/gke-spot"} <= {each["key"] for each in template["tolerations"]}
    steps = {step["name"]: step["status"] for step in summary["steps"]}
    assert steps == dict.fromkeys(
        ["pytorch-job", "metric-gate", "kserve-deploy", "kserve-predict"], "succeeded"
    )
