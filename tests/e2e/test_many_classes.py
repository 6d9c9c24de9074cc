"""A thousand classes: nothing outgrows what a container may say at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.kfp.backend import run
from harness.kfp.steps import Try, drive

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.local import client, lifecycle

pytestmark = pytest.mark.local_cluster

CLASSES = 1000
# What training tells at its end, without the training.
TELLS = """
from kfp_pytorch.training.entry.termination_message import success_message, write_message
classes = [f"class number {n} with a name" for n in range(1000)]
curves = {f"curve-{c}": [[s, 1 / (s + 1)] for s in range(5000)] for c in range(20)}
model = {"format": "kfp-pytorch", "classes": classes, "versions": {"torch": "2.8.0"},
         "inputs": [{"name": "image", "shape": [-1, 3, 224, 224], "datatype": "FP32"}],
         "outputs": [{"name": "logits", "shape": [-1, 1000], "datatype": "FP32"}]}
write_message(success_message({
    "metrics": {"accuracy": 0.76, "loss": 1.1},
    "world_size": 8,
    "export": {"path": "export", "sha256": "0" * 64, "model": model},
    "curves": curves,
    "samples": [{"instance": [[[0.5] * 64] * 64], "prediction": 3}] * 16,
}))
"""


def test_a_thousand_classes_fit_into_the_message_of_the_container_and_of_the_step(where, cluster):
    pipeline = f"{Path(__file__).with_name('training_pipelines.py')}:anything"
    package = image_form(packages.find_one(pipeline).spec, THIS_PYTHON)
    given = {"image": "train", "name": "many", "command": ["python", "-c", TELLS]}
    given |= {"clean_pod_policy": "Keep"}
    ended = Try(drive(package, "pytorch-job", where, given), where).wait()
    assert ended.code == 0, ended.log
    metadata = ended.artifacts["model"]["metadata"]
    assert metadata["metric_accuracy"] == 0.76
    assert all(isinstance(value, (str, float)) for value in metadata.values())
    assert message_of(cluster, "many-") <= 2048
    assert len(ended.message) <= 4096


def message_of(cluster, prefix):
    """The bytes of a finished pod's termination message."""
    handle = lifecycle.status(cluster.root)
    listed = client.request(
        handle.url, "GET", "/api/v1/namespaces/default/pods", token=handle.token
    )
    (pod,) = (p for p in listed["items"] if p["metadata"]["name"].startswith(prefix))
    (status,) = pod["status"]["containerStatuses"]
    return len(status["state"]["terminated"]["message"].encode())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_of_a_thousand_classes_is_trained_served_and_answers(where, tmp_path):
    from PIL import Image

    for number in range(CLASSES):
        for part in ("train", "val"):
            folder = tmp_path / "data" / part / f"class-{number:04}-with-a-long-name"
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8), (number % 256, number // 256, 50)).save(folder / "a.png")
    made = run(
        image_form(packages.find_one("train_and_serve").spec, THIS_PYTHON),
        where,
        dataset="imagefolder",
        data_dir=str(tmp_path / "data"),
        extra_args=["--image-size=8"],
        epochs=1,
        num_nodes=1,
        min_accuracy=0.0,
        service_name="many-classes",
    )
    assert made.succeeded, made.log
    answer = json.loads(made.of("kserve-predict").parameters["sample_prediction"])
    assert answer["label"].endswith("-with-a-long-name")
