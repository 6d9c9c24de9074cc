"""The whole of the main job, and the inputs that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, PYTORCHJOB


@pytest.fixture(scope="module")
def trained(cluster):
    """One run with the defaults, which the tests of this module look at."""
    ran = cluster.run("train_and_serve", service_name="e2e-classifier")
    assert ran.code == 0, ran.stderr
    return ran


def test_every_step_succeeds_in_order(trained):
    assert [(s["name"], s["status"]) for s in trained.summary["steps"]] == [
        ("tensorboard", "succeeded"),
        ("pytorch-job", "succeeded"),
        ("metric-gate", "succeeded"),
        ("kserve-deploy", "succeeded"),
        ("kserve-predict", "succeeded"),
    ]


def test_held_out_images_are_recognised(trained):
    assert trained.summary["metrics"]["accuracy"] >= 0.97


def test_two_processes_trained_together_and_the_report_says_so(cluster, trained, check_crd):
    report = trained.artifact("report").lower()
    assert "world size" in report
    assert "2" in report.partition("world size")[2].splitlines()[0]
    job = newest(cluster.objects(PYTORCHJOB), "train-")
    assert job["metadata"]["labels"][MANAGED_BY_LABEL]
    check_crd("pytorchjobs", job)


def test_curves_are_one_page_without_anything_from_elsewhere(trained):
    page = trained.artifact("curves")
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_answers_were_checked_over_http(trained):
    assert trained.summary["endpoint"].endswith("/v1/models/e2e-classifier:predict")
    assert trained.summary["prediction"]["class"] in range(10)
    assert Path(trained.summary["artifacts"]["kserve-predict.report"]).is_file()


@pytest.mark.slow
def test_an_unknown_data_set_is_answered_with_those_that_there_are(cluster):
    ran = cluster.run("train_and_serve", dataset="nonsuch")
    assert ran.code == 1
    assert "nonsuch" in ran.summary["error"]
    assert "digits, fashion-mnist" in ran.summary["error"]
    assert ran.step("kserve-deploy") == "skipped"


def newest(objects, prefix):
    named = [o for o in objects if o["metadata"]["name"].startswith(prefix)]
    return max(named, key=lambda o: o["metadata"]["creationTimestamp"])
