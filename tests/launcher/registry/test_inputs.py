"""What cannot be registered is refused before anything is asked, with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.registry.record import Record, record
from kfp_pytorch.launcher.registry.register_inputs import parse_register_inputs

KUBEFLOW = {"registry_url": "http://registry:8080"}
MLFLOW = {"mlflow_tracking_uri": "https://mlflow.example.com/team"}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "Neither registry_url nor mlflow_tracking_uri is set"),
        (KUBEFLOW | {"model_name": " "}, "model_name is not set"),
        (KUBEFLOW | {"model_name": "n" * 201}, "may have 200 characters"),
        (KUBEFLOW | {"model_name": "{{$.pipeline_job_name}}"}, "nothing filled in"),
        (KUBEFLOW | {"version": "a/b"}, "version is 'a/b'"),
        (KUBEFLOW | {"version": "-1"}, "begins with a letter or digit"),
        (KUBEFLOW | {"properties": {"a": {"b": 1}}}, "properties['a'] must be a string"),
        (KUBEFLOW | {"properties": {"a": float("nan")}}, "must be a finite number"),
        (KUBEFLOW | {"properties": {"": 1}}, "a key has 1 to 200"),
        (KUBEFLOW | {"mlflow_aliases": ["a"]}, "mlflow_tracking_uri is not set"),
        (KUBEFLOW | {"timeout": 0}, "timeout is 0"),
        ({"registry_url": "registry:8080"}, "it must begin with http:// or https://"),
        ({"registry_url": "http://u:geheim@registry"}, "registry_url holds a user's name"),
        (KUBEFLOW | {"ca_file": "ca.pem"}, "which begins with /"),
        ({"registry_url": "http://registry?a=b"}, "Give the server's address alone"),
        ({"mlflow_tracking_uri": "sqlite:///m.db"}, "start `mlflow server"),
        ({"mlflow_tracking_uri": "databricks"}, "has no REST API"),
        (MLFLOW | {"model_name": "team/digits"}, "MLflow takes no name with '/'"),
        (MLFLOW | {"model_name": "it's"}, "finds none with a quotation mark"),
        (MLFLOW | {"model_name": ".."}, "neither '.' nor '..' alone"),
        (MLFLOW | {"mlflow_aliases": ["latest"]}, "other than 'latest'"),
        (MLFLOW | {"mlflow_aliases": ["v1"]}, "other than 'latest' and 'v' with a number"),
        (MLFLOW | {"mlflow_aliases": ["a b"]}, "mlflow_aliases has 'a b'"),
        (MLFLOW | {"mlflow_run_id": "a b"}, "no id of an MLflow run"),
    ],
)
def test_an_input_that_cannot_work_is_refused(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_register_inputs(**{"model_name": "digits"} | inputs)
    assert words in refused.value.message
    assert "geheim" not in refused.value.message


def test_an_address_is_taken_with_the_path_of_the_api_too() -> None:
    given = parse_register_inputs(
        model_name="team/digits", registry_url="http://registry:8080/api/model_registry/v1alpha3/"
    )
    assert (given.registry_url, given.model_name) == ("http://registry:8080", "team/digits")
    given = parse_register_inputs(
        model_name="digits", mlflow_tracking_uri="https://m.example.com/team/api/2.0/mlflow"
    )
    assert given.mlflow_tracking_uri == "https://m.example.com/team"


def gathered(uri: str = "", metadata: dict[str, Any] | None = None, step: str = "") -> Record:
    inputs = parse_register_inputs(model_name="digits", **KUBEFLOW)
    return record(inputs, uri, metadata or {}, {}, step)


def test_a_model_that_was_not_exported_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError) as refused:
        gathered("minio://a/model", {"no_export": "export=False", "job": "j"})
    assert "There is no model to register: export=False." in refused.value.message


@pytest.mark.parametrize("place", ["/home/me/model", "file:///home/me/model", "model", "s3://"])
def test_a_path_on_one_machine_is_refused(place: str) -> None:
    with pytest.raises(InputError, match="keep it on a claim or in a bucket"):
        gathered(place)


def test_a_bucket_of_kfp_is_named_as_others_read_it() -> None:
    assert gathered("minio://mlpipeline/models/a").uri == "s3://mlpipeline/models/a"


def test_a_version_is_named_by_its_job_and_by_what_makes_it_this_model() -> None:
    about = {"storage_uri": "s3://b/m", "sha256": "ab" * 32, "job": "digits-1a2b"}
    first = gathered(metadata=about)
    assert first.version.startswith("digits-1a2b-")
    assert gathered("s3://elsewhere/model", about).version == first.version
    assert gathered(metadata=about | {"sha256": "cd" * 32}).version != first.version
    assert gathered(metadata=about | {"storage_uri": "s3://b/n"}).version != first.version
    assert gathered("s3://b/m").version.startswith("model-")


def test_an_imported_model_is_said_to_be_of_the_run_that_registered_it_first() -> None:
    run = "0b7a2f5e-1111-4222-8333-444455556666"
    own = gathered("s3://b/m", step=f"minio://root/serve/{run}/register-model/1f/registered")
    assert own.first == {"pipeline": "serve", "run_id": run, "task": "register-model"}
    assert own.properties == {"storage_uri": "s3://b/m"}
    # A local run has no such URIs.
    assert gathered("s3://b/m", step="/runs/serve-2025/register-model/registered").first == {}


def test_only_what_a_registry_keeps_is_taken_of_the_metadata() -> None:
    metadata = {
        "storage_uri": "s3://b/m",
        "metric_loss": float("nan"),
        "steps": 3,
        "flag": True,
        "nested": {"struct": {}},
        "long": "x" * 9_000,
        "empty": "",
        "store_session_info": "{}",
    }
    kept = gathered(metadata=metadata).properties
    assert kept.keys() == {"storage_uri", "steps", "long"}
    assert (kept["steps"], len(str(kept["long"]))) == (3.0, 4_000)
