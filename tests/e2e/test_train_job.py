"""A TrainJob trains the demo's model for real, and what it trained is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_pytorch.launcher.constants import POD, TRAINJOB

PIPELINE = f"{Path(__file__).with_name('trainer_pipelines.py')}:by_trainer"


@pytest.mark.slow
def test_a_train_job_trains_on_two_nodes_to_its_accuracy_and_is_served(cluster, check_crd):
    ran = cluster.run(PIPELINE)
    assert ran.code == 0, ran.stderr
    names = ["train-job", "metric-gate", "kserve-deploy", "kserve-predict"]
    assert [step["name"] for step in ran.summary["steps"]] == names
    assert ran.summary["metrics"]["accuracy"] >= 0.97
    assert ran.summary["model"]["storage_uri"].endswith("/export")
    report = ran.artifact("report").lower()
    assert "2" in report.partition("world size")[2].splitlines()[0]
    (trained,) = ran.summary["jobs"]
    assert [node["ranks"] for node in trained["logs"]] == ["rank 0", "rank 1"]
    job = next(j for j in cluster.objects(TRAINJOB) if j["metadata"]["name"].startswith("by-tr"))
    check_crd("trainjobs", job)
    name = job["metadata"]["name"]
    hosts = {
        pod["spec"]["hostname"]
        for pod in cluster.objects(POD)
        if pod["metadata"]["name"].startswith(f"{name}-node-0-")
    }
    assert hosts == {f"{name}-node-0-0", f"{name}-node-0-1"}
