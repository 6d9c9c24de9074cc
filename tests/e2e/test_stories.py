"""What a person sees when a run goes well, and when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.command import until

from kfp_pytorch.launcher.constants import ATTEMPT_ANNOTATION, INFERENCE_SERVICE, PYTORCHJOB

PIPELINES = Path(__file__).with_name("pipelines.py")


def jobs(cluster, name):
    """The jobs of a name; one that was deleted stays until its pods are gone."""
    return [
        job for job in cluster.objects(PYTORCHJOB) if job["metadata"]["name"].startswith(f"{name}-")
    ]


def test_a_job_of_two_nodes_hands_its_metrics_to_a_gate_that_lets_them_pass(cluster, check_crd):
    ran = cluster.run(f"{PIPELINES}:gated", accuracy=0.95)
    assert ran.code == 0, ran.stderr
    assert ran.summary["status"] == "succeeded"
    assert ran.summary["metrics"] == {"accuracy": 0.95}
    assert [(s["name"], s["status"]) for s in ran.summary["steps"]] == [
        ("pytorch-job", "succeeded"),
        ("metric-gate", "succeeded"),
    ]
    assert "accuracy=0.95" in ran.stderr  # the training's own line, while it runs
    assert "world size" in ran.artifact("report").lower()
    for job in jobs(cluster, "tiny"):
        check_crd("pytorchjobs", job)


def test_a_gate_stops_the_run_and_says_by_how_much(cluster):
    ran = cluster.run(f"{PIPELINES}:gated", accuracy=0.5, nodes=1)
    assert ran.code == 1
    assert ran.step("pytorch-job") == "succeeded"
    assert ran.step("metric-gate") == "failed"
    assert "accuracy" in ran.summary["error"]
    assert "0.4" in ran.summary["error"]  # 0.9 - 0.5


def test_a_script_that_raises_fails_the_step_with_its_traceback_and_leaves_no_job(cluster):
    ran = cluster.run(f"{PIPELINES}:raising")
    assert ran.code == 1
    assert ran.summary["status"] == "failed"
    assert "ValueError: the script's own words" in ran.summary["error"]
    assert "kfp/dsl" not in ran.summary["error"]
    assert ran.step("metric-gate") == "skipped"
    assert "raising" in ran.artifact("report")
    until(lambda: jobs(cluster, "raising") == [])


def test_a_script_with_a_bug_is_started_twice_and_not_again(cluster):
    ran = cluster.run(f"{PIPELINES}:raising_again")
    assert ran.code == 1
    assert "ValueError: the script's own words" in ran.summary["error"]
    said = " ".join(ran.stderr.split())
    assert "failed twice in the same way within a minute, so it is not started again" in said
    assert "| Restarts | 1 |" in ran.artifact("report")
    until(lambda: jobs(cluster, "raising-again") == [])


def test_a_script_that_reports_nothing_is_told_how_and_its_model_is_not_deployed(cluster):
    ran = cluster.run(f"{PIPELINES}:silent")
    assert ran.code == 1
    assert ran.step("pytorch-job") == "succeeded"
    assert ran.summary["model"] == {"storage_uri": ""}
    said = " ".join(ran.stderr.split())
    assert "Training reported no metrics, no curves, no export. A script does so with" in said
    assert "There is no model to deploy: training reported no export" in ran.summary["error"]
    assert cluster.objects(INFERENCE_SERVICE) == []


def test_a_retried_step_replaces_its_failed_job_and_finds_its_own_folder(cluster):
    ran = cluster.run(f"{PIPELINES}:retried")
    assert ran.code == 0, ran.stderr
    assert [(s["status"], s["attempts"]) for s in ran.summary["steps"]] == [("succeeded", 2)]
    (job,) = jobs(cluster, "retried")
    assert job["metadata"]["annotations"][ATTEMPT_ANNOTATION] == "2"


@pytest.mark.slow
def test_a_claim_that_is_not_there_is_named_before_a_job_is_made(cluster):
    # Other tests, too, have steps of this name, whose jobs may be kept.
    of_others = [job["metadata"]["uid"] for job in jobs(cluster, "pytorch-job")]
    ran = cluster.run(f"{PIPELINES}:elsewhere")
    assert ran.code == 1
    assert "no PersistentVolumeClaim 'nonsuch'" in ran.summary["error"]
    until(lambda: all(job["metadata"]["uid"] in of_others for job in jobs(cluster, "pytorch-job")))


def test_a_command_that_does_not_exist_is_named(cluster):
    ran = cluster.run(f"{PIPELINES}:commanded")
    assert ran.code == 1
    assert 'exec: "nonsuch": executable file not found' in ran.summary["error"]
    until(lambda: jobs(cluster, "commanded") == [])
