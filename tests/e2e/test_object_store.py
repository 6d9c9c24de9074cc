"""The main job on a real S3 server, its steps run as on a cluster: credentials from a Secret."""

from __future__ import annotations

import json

import pytest
from harness.backend import run
from harness.steps import Try, drive
from harness.s3 import BUCKET

from kfp_pytorch.cli import packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher.constants import PYTORCHJOB, Kind
from kfp_pytorch.local import client, lifecycle

SECRET = Kind("", "v1", "Secret", "secrets")
ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
QUICK = {"epochs": 2, "num_nodes": 1, "min_accuracy": 0.3}


@pytest.fixture(scope="module")
def make(cluster):
    handle = lifecycle.status(cluster.root)
    if handle is None:
        pytest.skip("the S3 server of this machine is seen by pods of the local cluster only")

    def send(kind, body):
        url = client.path(kind, "default")
        return client.request(handle.url, "POST", url, body, token=handle.token)

    return send


@pytest.fixture(scope="module")
def secrets(make, s3):
    """Who may use the bucket, and who may not."""
    make(SECRET, s3.secret_object("models-s3"))
    make(SECRET, s3.secret_object("wrong-s3", AWS_SECRET_ACCESS_KEY="nonsense"))
    for name in ("models", "wrong"):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        make(ACCOUNT, account | {"secrets": [{"name": f"{name}-s3"}]})


@pytest.fixture(scope="module")
def package():
    return image_form(packages.find_one("train_and_serve").spec, THIS_PYTHON)


def test_a_model_goes_through_a_bucket_from_training_to_right_answers(
    where, package, secrets, s3, check_crd, cluster
):
    made = run(
        package,
        where,
        **QUICK,
        output_uri=f"s3://{BUCKET}/runs",
        output_secret="models-s3",
        service_name="from-s3",
        serving_service_account="models",
    )
    assert made.succeeded, made.log
    folder = f"{BUCKET}/runs/{where.setting.run_id}"
    kinds = {path.split("/")[4] for path in s3.files.find(folder)}
    assert kinds == {"checkpoints", "tensorboard", "export", "metrics.json"}
    trained = made.of("pytorch-job")
    assert trained.parameters["storage_uri"].startswith(f"s3://{folder}/train-")
    assert trained.artifacts["model"]["uri"].startswith("minio://")
    assert made.of("kserve-predict").parameters["correct"] == 1.0
    assert s3.secret not in made.log + json.dumps(made.of("pytorch-job").artifacts)
    for job in cluster.objects(PYTORCHJOB):
        check_crd("pytorchjobs", job)
        assert s3.secret not in json.dumps(job)


def trained(package, where, **parameters):
    """One try of the step that trains."""
    given = {
        "image": "train",
        "command": ["python", "-m", "kfp_pytorch.training"],
        "args": ["--epochs=1"],
        "restart_policy": "Never",
        **parameters,
    }
    return Try(drive(package, "pytorch-job", where, given), where).wait()


@pytest.mark.parametrize(
    ("secret", "bucket", "words"),
    [
        ("wrong-s3", BUCKET, ["s3://kfp-pytorch/bad/", "SignatureDoesNotMatch"]),
        ("models-s3", "nonsuch", ["s3://nonsuch/bad/", "NoSuchBucket"]),
        ("", BUCKET, ["credentials"]),
        ("nonsuch-s3", BUCKET, ["nonsuch-s3"]),
    ],
    ids=["wrong key", "missing bucket", "no secret", "missing secret"],
)
def test_a_bucket_that_cannot_be_written_is_named_with_the_reason(
    where, package, secrets, cluster, secret, bucket, words
):
    ended = trained(package, where, output_uri=f"s3://{bucket}/bad", output_secret=secret)
    print(ended.log)
    print(ended.message)
    assert ended.code == 1
    assert all(word in ended.log for word in words)
    assert all(word in ended.message for word in words)
    assert "nonsense" not in ended.log
    assert jobs(cluster) == []
