"""`distribute`: a component's function in every process of a job, on 2 nodes of 2 processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.kfp.backend import run

from kfp_pytorch.client.packages.find import find_one
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher.constants import PYTORCHJOB

PIPELINES = Path(__file__).with_name("distributed_pipelines.py")


@pytest.mark.slow
def test_rank_0_of_2_nodes_with_2_processes_returns_the_metric_and_the_model(cluster):
    ran = cluster.run(f"{PIPELINES}:distributed")
    assert ran.code == 0, ran.stderr
    assert [s["status"] for s in ran.summary["steps"]] == ["succeeded"] * 3
    # 0 + 1 + 2 + 3, and the second job read the model of the first.
    assert "told: 6.0, 6.0 in 1 at torch, 6.0" in ran.stderr
    (job,) = (j for j in cluster.objects(PYTORCHJOB) if j["metadata"]["name"].startswith("train-"))
    assert job["spec"]["nprocPerNode"] == "2"
    assert {r: s["replicas"] for r, s in job["spec"]["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 1,
    }


@pytest.mark.slow
def test_a_rank_that_fails_fails_the_step_with_the_users_traceback_and_no_second_try(cluster):
    ran = cluster.run(f"{PIPELINES}:distributed", fail_rank=3)
    assert ran.code == 1
    words = " ".join(ran.stderr.split())
    assert "Rank 3 (train-" in words
    assert "raised ValueError: rank 3 of 4 is no good: {$HOME} `x`" in words
    assert "ephemeral_component.py" in words


@pytest.mark.slow
@pytest.mark.local_cluster
def test_kfps_backend_hands_on_what_rank_0_returns(where):
    package = image_form(find_one(f"{PIPELINES}:distributed").spec, THIS_PYTHON)
    made = run(package, where)
    assert made.succeeded, made.log
    assert "told: 6.0, 6.0 in 1 at torch, 6.0" in made.log
    model = made.of("train").artifacts["model"]
    assert model["metadata"]["storage_uri"].startswith("pvc://kfp-pytorch/train-")
    assert model["uri"].startswith("minio://")
    assert made.of("train").artifacts["job_report"]["uri"].startswith("minio://")
