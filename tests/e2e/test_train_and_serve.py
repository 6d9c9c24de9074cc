"""The whole of the main job, and the inputs that it refuses."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import pytest

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, PYTORCHJOB

TERMINATION_FIELDS = {
    *("version", "status", "metrics", "world_size", "checkpoint", "export", "curves", "samples"),
}


@pytest.fixture(scope="module")
def trained(cluster):
    """One run with the defaults, which the tests of this module look at."""
    ran = cluster.run("train_and_serve", service_name="e2e-classifier")
    # This machine need not reach the predictor of another cluster, of which kserve_predict asks.
    if cluster.where == ["--local"]:
        assert ran.code == 0, ran.stderr
    return ran


@pytest.fixture(scope="module")
def first_pod(cluster, trained):
    """The message and the log of the job's first pod, by which the operator knows its success."""
    from kubernetes import client, config

    api = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    name = newest(cluster.objects(PYTORCHJOB), "train-")["metadata"]["name"] + "-master-0"
    (container,) = api.read_namespaced_pod(name, cluster.namespace).status.container_statuses
    log = api.read_namespaced_pod_log(name, cluster.namespace)
    return json.loads(container.state.terminated.message), log


@pytest.fixture(scope="module")
def export(cluster, trained):
    """The folder of the export, which is on this machine with the local cluster alone."""
    path = trained.summary["model"]["storage_uri"].removeprefix("pvc://")
    return cluster.root / "claims" / "default" / path


def test_every_step_succeeds_in_order(trained):
    names = ["tensorboard", "pytorch-job", "metric-gate", "kserve-deploy", "kserve-predict"]
    assert [step["name"] for step in trained.summary["steps"]] == names
    assert {trained.step(name) for name in names[:-1]} == {"succeeded"}


@pytest.mark.local_cluster
def test_the_end_of_the_run_fits_a_screen(cluster, trained):
    end = trained.stderr[trained.stderr.rindex("train-and-serve succeeded in ") :]
    lines = end.rstrip().replace(str(cluster.root), "~/.kfp-pytorch").split("\n")
    assert sum(max(1, -(-len(line) // 80)) for line in lines) <= 24


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


@pytest.mark.local_cluster
def test_answers_were_checked_over_http(trained):
    assert trained.step("kserve-predict") == "succeeded"
    assert trained.summary["endpoint"].endswith("/v1/models/e2e-classifier:predict")
    assert trained.summary["prediction"]["class"] in range(10)
    assert Path(trained.summary["artifacts"]["predictions"]).is_file()


def test_the_message_of_a_pod_tells_the_whole_result(first_pod):
    message, _log = first_pod
    assert set(message) == TERMINATION_FIELDS
    assert message["status"] == "succeeded"
    assert message["world_size"] == 2
    assert len(message["samples"]) >= 3


def test_a_report_is_one_line_of_names_and_values(first_pod):
    _message, log = first_pod
    reports = [line for line in log.splitlines() if " accuracy=" in line]
    assert len(reports) == 15
    for line in reports:
        names = [pair.partition("=")[0] for pair in line.split()]
        assert names == ["epoch", "step", "loss", "accuracy"]
        assert all(float(pair.partition("=")[2]) >= 0 for pair in line.split())


@pytest.mark.local_cluster
def test_the_exported_program_answers_the_samples_of_the_message(first_pod, export):
    import torch

    program = torch.export.load(export / "model.pt2").module()
    samples = first_pod[0]["samples"]
    images = [
        torch.tensor(list(zlib.decompress(base64.b64decode(sample["packed"])))).view(
            sample["shape"]
        )
        for sample in samples
    ]
    logits = program(torch.stack(images).float())
    assert logits.argmax(dim=1).tolist() == [sample["prediction"] for sample in samples]


@pytest.mark.local_cluster
def test_one_writer_told_tensorboard_each_scalar_once(export):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = export.parent
    assert len(list((folder / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    curves = json.loads((folder / "metrics.json").read_text())["curves"]
    for name, points in curves.items():
        assert [event.step for event in events.Scalars(name)] == [step for step, _ in points]
    (run,) = events.Tensors("run/text_summary")
    assert b"| world_size | `2` |" in run.tensor_proto.string_val[0]
    assert events.Images("train_images")


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
