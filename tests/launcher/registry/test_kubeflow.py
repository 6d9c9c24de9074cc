"""A model in Kubeflow's Model Registry: once, whatever happens on the way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.registries import kubeflow
from harness.registries.serving import Fault, Served, serve

from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.registry.http import RegistryError

Register = Callable[..., Any]
POSTS = ["/registered_models", "/model_versions", "/artifacts"]


def failure(kind: type[StepError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as failed:
        call()
    return failed.value.message


def values(version: dict[str, Any]) -> dict[str, Any]:
    """The custom properties of a version, without their types."""
    return {
        name: value.get("string_value", value.get("double_value"))
        for name, value in version["customProperties"].items()
    }


def counts(served: Served) -> tuple[int, int, int]:
    """How many models, versions and artifacts there are."""
    registry = served.registry
    return len(registry.models), len(registry.versions), len(registry.artifacts)


def test_a_model_is_registered_with_where_it_comes_from(
    register: Register, registry: Served
) -> None:
    ui = "https://kubeflow.example.com/model-registry/mr"
    done = register(
        registry_url=registry.url,
        run_name="tuesday",
        properties={"team": "vision", "cost": 3},
        registry_ui_url=ui,
    )
    (model,) = registry.registry.models.values()
    (version,) = registry.registry.versions.values()
    (artifact,) = registry.registry.artifacts.values()
    assert (model["name"], version["registeredModelId"]) == ("digits", model["id"])
    assert values(version) == {
        "run_id": "0b7a2f5e-1111-4222-8333-444455556666",
        "pipeline": "train-and-serve",
        "task": "pytorch-job",
        "run_name": "tuesday",
        "job": "digits-1a2b",
        "namespace": "team",
        "folder": "pvc://kfp-pytorch/r1/digits-1a2b",
        "storage_uri": "pvc://kfp-pytorch/r1/digits-1a2b/export",
        "sha256": "ab" * 32,
        "format": "kfp-pytorch",
        "dataset": "s3://data/digits",
        "checkpoint": 390.0,
        "metric_accuracy": 0.97,
        "version_torch": "2.8.0",
        "team": "vision",
        "cost": 3.0,
    }
    assert artifact["uri"] == "pvc://kfp-pytorch/r1/digits-1a2b/export"
    assert (artifact["modelFormatName"], artifact["modelFormatVersion"]) == ("kfp-pytorch", "1")
    assert artifact["modelSourceId"] == "0b7a2f5e-1111-4222-8333-444455556666"
    assert done.outputs.version == version["name"]
    assert version["name"].startswith("digits-1a2b-")
    assert (done.outputs.registered_model_id, done.outputs.model_version_id) == ("1", "2")
    assert done.outputs.url == f"{ui}/registered-models/1/versions/2"
    assert done.registered["model_version_id"] == "2"
    assert (done.outputs.mlflow_version, "mlflow_version" in done.registered) == ("", False)


def test_a_second_run_with_the_same_model_writes_nothing(
    register: Register, registry: Served
) -> None:
    first = register(registry_url=registry.url, run_name="tuesday")
    registry.requests.clear()
    second = register(registry_url=registry.url, run_name="wednesday")
    assert (second.outputs, registry.writes) == (first.outputs, [])


def test_only_what_differs_is_changed_and_what_people_added_stays(
    register: Register, registry: Served
) -> None:
    register(registry_url=registry.url)
    (version,) = registry.registry.versions.values()
    added = {"metadataType": "MetadataStringValue", "string_value": "yes"}
    version["customProperties"]["reviewed"] = added
    (artifact,) = registry.registry.artifacts.values()
    artifact["modelFormatName"] = "onnx"
    registry.requests.clear()
    register({"metric_accuracy": 0.98}, registry_url=registry.url, description="better")
    assert registry.writes == ["PATCH /model_versions/2", "PATCH /model_artifacts/3"]
    assert values(version) | {"reviewed": "yes", "metric_accuracy": 0.98} == values(version)
    assert version["description"] == "better"
    assert registry.requests[-1][2] == {"modelFormatName": "kfp-pytorch", "state": "LIVE"}
    assert (artifact["modelFormatName"], artifact["state"]) == ("kfp-pytorch", "LIVE")


@pytest.mark.parametrize("path", POSTS)
def test_what_was_created_without_an_answer_is_found(
    register: Register, registry: Served, path: str
) -> None:
    registry.faults = [Fault("POST", path, is_lost=True)]
    register(registry_url=registry.url)
    assert counts(registry) == (1, 1, 1)


@pytest.mark.parametrize("path", POSTS)
def test_what_another_step_creates_at_the_same_moment_is_used(
    register: Register, registry: Served, path: str
) -> None:
    registry.faults = [Fault("POST", path, is_late=True)]
    register(registry_url=registry.url)
    assert counts(registry) == (1, 1, 1)


def test_a_registry_that_is_restarted_is_waited_for(register: Register, registry: Served) -> None:
    away = (503, b"upstream connect error", {"Retry-After": "0"})
    registry.faults = [
        Fault("GET", "/registered_model", is_lost=True),
        Fault("POST", "/model_versions", answer=away, times=3),
        Fault("PATCH", "/2", answer=(502, b"", {}), times=2),
    ]
    register(registry_url=registry.url)
    register(registry_url=registry.url, description="again")
    assert counts(registry) == (1, 1, 1)
    assert registry.registry.versions["2"]["description"] == "again"


def test_a_registry_that_is_away_for_too_long_is_named_with_its_last_answer(
    register: Register, registry: Served
) -> None:
    registry.faults = [Fault("POST", "/artifacts", answer=(500, b"the disk is full", {}), times=99)]
    message = failure(RegistryError, lambda: register(registry_url=registry.url, timeout=1))
    assert "Model Registry at http://127.0.0.1" in message
    assert "500 the disk is full" in message
    assert "(timeout 1 s)" in message


def test_names_with_signs_that_sql_fits_to_anything_are_told_apart(
    register: Register, registry: Served
) -> None:
    for name, version in (("resnet-18", "v-1"), ("resnet_18", "v-1"), ("resnet_18", "v_1")):
        for _ in range(2):
            register(registry_url=registry.url, model_name=name, version=version)
    assert counts(registry) == (2, 3, 3)


def test_a_name_that_the_database_takes_for_another_is_refused_with_that(
    register: Register,
) -> None:
    with serve(kubeflow.ModelRegistry(ignores_case=True), kubeflow.API) as registry:
        register(registry_url=registry.url)
        message = failure(
            InputError, lambda: register(registry_url=registry.url, model_name="Digits")
        )
        assert counts(registry) == (1, 1, 1)
    assert "has the model 'digits'" in message


@pytest.mark.parametrize("other", [{"sha256": "cd" * 32}, {"storage_uri": "s3://models/other"}])
def test_a_version_of_another_model_is_refused_and_left_alone(
    register: Register, registry: Served, other: dict[str, str]
) -> None:
    given = {"registry_url": registry.url, "version": "1.0"}
    register(**given)
    registry.requests.clear()
    message = failure(InputError, lambda: register(other, **given))
    assert "version '1.0' of 'digits', and it is another model" in message
    assert registry.writes == []


def test_a_version_that_a_person_made_for_another_file_is_refused(
    register: Register, registry: Served
) -> None:
    register(registry_url=registry.url, version="1.0")
    registry.registry.versions["2"]["customProperties"] = {}
    (artifact,) = registry.registry.artifacts.values()
    artifact["uri"] = "s3://models/by-hand"
    message = failure(InputError, lambda: register(registry_url=registry.url, version="1.0"))
    assert "at 's3://models/by-hand'" in message


def test_an_archived_model_stays_so_and_is_told(
    register: Register, registry: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    register(registry_url=registry.url)
    registry.registry.models["1"]["state"] = "ARCHIVED"
    register(registry_url=registry.url)
    assert registry.registry.models["1"]["state"] == "ARCHIVED"
    assert "'digits' is archived" in " ".join(capsys.readouterr().out.split())
