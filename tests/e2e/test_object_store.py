"""The main job on a real S3 server, its steps run as on a cluster: credentials from a Secret."""

from __future__ import annotations

import json

import pytest
from harness.command import until
from harness.kfp.backend import run
from harness.kfp.steps import Try, drive, new_run
from harness.s3 import BUCKET

from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher.constants import PYTORCHJOB, Kind
from kfp_pytorch.local import client, lifecycle

# One story with several trainings, on a machine that may be busy.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.local_cluster]

SECRET = Kind("", "v1", "Secret", "secrets")
ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
QUICK = {"epochs": 1, "num_nodes": 1, "min_accuracy": 0.1}


@pytest.fixture(scope="module")
def make(cluster):
    handle = lifecycle.status(cluster.root)

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


@pytest.fixture(scope="module")
def served(make, package, secrets, cluster, tmp_path_factory):
    """A run of the main job whose files are all in the bucket."""
    where = new_run(cluster.root, tmp_path_factory.mktemp("served"))
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
    return where, made


def test_a_model_goes_through_a_bucket_from_training_to_right_answers(served, s3):
    where, made = served
    folder = f"{BUCKET}/runs/{where.setting.run_id}"
    kinds = {path.split("/")[4] for path in s3.files.find(folder)}
    assert kinds == {"checkpoints", "tensorboard", "export", "metrics.json"}
    trained = made.of("pytorch-job")
    assert trained.parameters["storage_uri"].startswith(f"s3://{folder}/train-")
    assert trained.artifacts["model"]["uri"].startswith("minio://mlpipeline/")
    assert made.of("kserve-predict").parameters["correct"] == 1.0


def test_the_model_of_the_next_step_has_come_back_from_ml_metadata(served):
    metadata = served[1].of("pytorch-job").artifacts["model"]["metadata"]
    assert metadata["store_session_info"] == "{}"
    assert all(isinstance(value, (str, float)) for value in metadata.values())
    assert metadata["storage_uri"].startswith("s3://")
    assert 0.1 < metadata["metric_accuracy"] <= 1


def test_the_keys_are_in_no_log_artifact_or_job(served, cluster, s3, check_crd):
    _, made = served
    assert s3.secret not in made.log
    for ended in (made.of("pytorch-job"), made.of("kserve-deploy")):
        assert s3.secret not in json.dumps([ended.artifacts, ended.parameters])
    for job in cluster.objects(PYTORCHJOB):
        check_crd("pytorchjobs", job)
        assert s3.secret not in json.dumps(job)


def test_another_job_starts_from_a_folder_in_the_bucket_and_leaves_it(
    served, package, where, s3, cluster
):
    folder = served[1].of("pytorch-job").parameters["folder"]
    before = s3.files.find(folder.removeprefix("s3://"), detail=True)
    ended = trained(
        package,
        where,
        output_uri=f"s3://{BUCKET}/resumed",
        output_secret="models-s3",
        resume_from=folder,
        args=["--epochs=3", "--max-train-samples=0"],
    )
    assert ended.code == 0, ended.log
    assert "epoch=3 step=" in ended.log
    assert "epoch=1 step=" not in ended.log
    assert s3.files.find(folder.removeprefix("s3://"), detail=True).keys() == before.keys()
    (checkpoint,) = s3.files.glob(f"{BUCKET}/resumed/*/checkpoints/latest")
    assert checkpoint


ADD = """
import fsspec
from kfp_pytorch.training import script
with fsspec.open(script.dataset()) as file:
    script.report({"rows": len(file.read().splitlines())})
"""


def test_a_job_reads_a_data_set_in_the_bucket_with_its_own_secret(package, where, secrets, s3):
    s3.files.pipe(f"{BUCKET}/data/rows.txt", b"1\n2\n3\n")
    data = {
        "uri": f"minio://mlpipeline/{where.setting.run_id}/data",
        "type": {"schemaTitle": "system.Dataset"},
        "metadata": {"storage_uri": f"s3://{BUCKET}/data/rows.txt"},
    }
    given = {
        "image": "read",
        "command": ["python", "-c", ADD],
        "output_uri": f"s3://{BUCKET}/read",
        "output_secret": "models-s3",
    }
    ended = Try(drive(package, "pytorch-job", where, given, {"dataset": data}), where).wait()
    assert ended.code == 0, ended.log
    assert ended.artifacts["metrics"]["metadata"]["rows"] == 3


def test_keys_that_the_bucket_refuses_fail_the_step_with_the_place_and_no_job(
    package, where, secrets, cluster
):
    ended = trained(package, where, output_uri=f"s3://{BUCKET}/bad", output_secret="wrong-s3")
    assert ended.code == 1
    for words in (f"s3://{BUCKET}/bad/", "signature"):
        assert words in ended.log
        assert words in ended.message
    assert "name the Secret with its credentials as output_secret" in " ".join(ended.log.split())
    assert "nonsense" not in ended.log
    assert ended.artifacts == {}
    until(
        lambda: not [j for j in cluster.objects(PYTORCHJOB) if j["metadata"]["name"] in ended.log]
    )


def test_keys_that_the_predictor_may_not_use_fail_the_deployment_with_the_place(
    served, package, where
):
    model = served[1].of("pytorch-job").artifacts["model"]
    given = {"service_name": "refused", "service_account": "wrong", "timeout": 60}
    task = drive(package, "kserve-deploy", where, given, {"model": model})
    ended = Try(task, where).wait()
    assert ended.code == 1
    assert "storage-initializer" in ended.log
    assert model["metadata"]["storage_uri"] in ended.log
    assert ended.message


def trained(package, where, **parameters):
    """One attempt of the step that trains."""
    given = {
        "image": "train",
        "command": ["python", "-m", "kfp_pytorch.training"],
        "args": ["--epochs=1"],
        "restart_policy": "Never",
        **parameters,
    }
    return Try(drive(package, "pytorch-job", where, given), where).wait()
