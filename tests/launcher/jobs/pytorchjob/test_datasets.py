"""A job with data sets: its command line, variables, claims and credentials."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from harness.kfp.metadata import given_back

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import PyTorchJobInputs, parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest


def artifact(uri: str, **metadata: Any) -> Any:
    return SimpleNamespace(uri=uri, metadata=metadata)


def parsed(**inputs: Any) -> PyTorchJobInputs:
    return parse_inputs(**{"image": "train:1", **inputs})


def pod(**inputs: Any) -> dict[str, Any]:
    job = manifest(parsed(**inputs), job_name="j", labels={}, annotations={}, owner=None)
    return job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]


def variables(spec: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in spec["containers"][0]["env"]}


def test_the_uri_comes_into_command_arguments_and_hyperparameters_and_two_variables() -> None:
    spec = pod(
        command=["python", "{dataset}/train.py"],
        args=["--data={dataset.dataset}"],
        hyperparameters={"seed": 1, "train": "{dataset}/train"},
        dataset=artifact("minio://mlpipeline/data", rows=3.0),
    )
    (container,) = spec["containers"]
    assert container["command"] == ["python", "s3://mlpipeline/data/train.py"]
    assert container["args"] == [
        *("--data=s3://mlpipeline/data", "--seed=1", "--train=s3://mlpipeline/data/train"),
    ]
    told = variables(spec)
    assert told["KFP_PYTORCH_DATASET"] == "s3://mlpipeline/data"
    assert json.loads(told["KFP_PYTORCH_DATASETS"]) == {
        "dataset": {"uri": "s3://mlpipeline/data", "metadata": {"rows": 3}}
    }


def test_the_claims_of_data_sets_are_mounted_once_and_read_only() -> None:
    spec = pod(
        output_uri="pvc://work/out",
        dataset_names=["train", "test"],
        dataset=artifact("s3://small/note", storage_uri="pvc://work/data"),
        dataset_2=artifact("s3://small/note", storage_uri="pvc://other"),
    )
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert sorted(claims.values()) == ["other", "work"]
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    for name, claim in (("train", "work"), ("test", "other")):
        mount = mounts[f"/mnt/kfp-pytorch/dataset/{name}"]
        assert (claims[mount["name"]], mount["readOnly"]) == (claim, True)
    assert variables(spec)["KFP_PYTORCH_DATASET"] == "/mnt/kfp-pytorch/dataset/train/data"
    places = parsed(dataset=artifact("s3://x/y", storage_uri="pvc://c")).places
    assert places["dataset 'dataset'"].host == "c"


def test_the_metadata_is_what_the_step_wrote_after_ml_metadata_too() -> None:
    wrote = {"rows": 3, "share": 0.5, "columns": ["a", "b"], "of": {"a": {"list": [1]}}, "by": "x"}
    for metadata in (wrote, given_back(wrote, "data")):
        spec = pod(dataset=artifact("s3://b/data", **metadata))
        told = json.loads(variables(spec)["KFP_PYTORCH_DATASETS"])
        assert told["dataset"]["metadata"] == wrote


def test_a_data_set_in_a_gcs_bucket_is_read_with_the_key_of_the_secret() -> None:
    spec = pod(output_secret="key", dataset=artifact("gs://bucket/data"))
    assert "GOOGLE_APPLICATION_CREDENTIALS" in variables(spec)
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in variables(pod(output_secret="key"))


def test_another_data_set_makes_another_job() -> None:
    one, other = (parsed(dataset=artifact(f"s3://b/{n}")).spec() for n in (1, 2))
    assert one != other
    json.dumps(one)


def test_a_job_without_data_sets_keeps_braces_and_has_no_variable() -> None:
    spec = pod(args=["{dataset}", "{dataset.a}"], dataset=None, dataset_names=["a"])
    assert spec["containers"][0]["args"] == ["{dataset}", "{dataset.a}"]
    assert not [name for name in variables(spec) if name.startswith("KFP_PYTORCH_DATASET")]
    assert "datasets" not in parsed().spec()


def test_metadata_that_is_too_large_for_a_variable_is_refused() -> None:
    with pytest.raises(InputError, match=r"env\['KFP_PYTORCH_DATASETS'\] alone"):
        parsed(dataset=artifact("s3://b/x", text="x" * 100_000))


def test_the_variables_of_data_sets_are_the_launchers_own() -> None:
    with pytest.raises(InputError, match="env may not set KFP_PYTORCH_DATASET"):
        parsed(env={"KFP_PYTORCH_DATASET": "x"})
