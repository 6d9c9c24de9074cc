"""`distribute` with its files in a bucket of a real S3 server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fsspec
import pytest

from kfp_pytorch.launcher.jobs.distributed.program import outputs
from kfp_pytorch.launcher.jobs.distributed.program.fetch import fetch

pytestmark = [pytest.mark.slow, pytest.mark.local_cluster]

PIPELINES = Path(__file__).with_name("distributed_pipelines.py")


@pytest.fixture
def secret(s3, tmp_path):
    """The options that give a run the Secret of the bucket."""
    made = tmp_path / "models-s3.yaml"
    made.write_text(json.dumps(s3.secret_object("models-s3")))
    return ["--secrets", str(made)]


def test_files_folders_metrics_and_values_of_rank_0_come_back_from_a_bucket(cluster, s3, secret):
    ran = cluster.run(f"{PIPELINES}:in_a_bucket", *secret)
    assert ran.code == 0, ran.stderr
    texts = ["a.txt of rank 0", "deep/b ä.txt of rank 0"]
    sizes = {"it's": {"processes": 4}, "total": [6]}
    assert f"said: 6.0 {texts} {sizes} s3://kfp-pytorch/runs 6.0" in ran.stderr
    (folder,) = s3.files.glob("kfp-pytorch/runs/fit-*/outputs")
    written = {path.removeprefix(f"{folder}/") for path in s3.files.find(folder)}
    assert written == {"model", "shards/a.txt", "shards/deep/b ä.txt"}
    assert s3.secret not in ran.stderr


@pytest.fixture
def store(s3, monkeypatch):
    """Has clients of this process find the server."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    yield s3
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_what_an_earlier_attempt_left_in_the_bucket_is_replaced(store, tmp_path, monkeypatch):
    output = "s3://kfp-pytorch/attempts"
    data = tmp_path / "data"
    for name in ("old", "new[1]*.txt"):
        (data / "deep").mkdir(parents=True)
        (data / "deep" / name).write_text(name)
        outputs.check_bucket(output)
        outputs.upload(tmp_path, ["data"], output)
        shutil.rmtree(data)
    found = store.files.find("kfp-pytorch/attempts")
    assert found == ["kfp-pytorch/attempts/outputs/data/deep/new[1]*.txt"]
    monkeypatch.setenv("KFP_PYTORCH_RANKS", str(tmp_path))
    uris = {"data": f"{output}/outputs/data", "one": f"s3://{found[0]}"}
    given = {name: {"uri": uri, "metadata": {}} for name, uri in uris.items()}
    monkeypatch.setenv("KFP_PYTORCH_DATASETS", json.dumps(given))
    fetch()
    inputs = tmp_path / "inputs"
    assert {str(each.relative_to(inputs)) for each in inputs.rglob("*") if each.is_file()} == {
        "data/data/deep/new[1]*.txt",
        "one/new[1]*.txt",
    }


def test_a_bucket_that_a_pod_cannot_use_is_named_with_the_way_out(store, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nonsense")
    with pytest.raises(RuntimeError, match=r"s3://kfp-pytorch/x, and this pod.*output_secret"):
        outputs.check_bucket("s3://kfp-pytorch/x")
    monkeypatch.setenv("KFP_PYTORCH_RANKS", str(tmp_path))
    given = {"data": {"uri": "s3://kfp-pytorch/absent", "metadata": {}}}
    monkeypatch.setenv("KFP_PYTORCH_DATASETS", json.dumps(given))
    with pytest.raises(RuntimeError, match=r"'data' cannot be read from s3://kfp-pytorch/absent"):
        fetch()
