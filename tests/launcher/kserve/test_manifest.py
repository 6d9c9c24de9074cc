"""From a model and inputs to an InferenceService."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, MODEL_FORMAT, SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.manifest import (
    ServiceInputs,
    check_host,
    manifest,
    parse_inputs,
)
from kfp_pytorch.launcher.steps import kserve_deploy
from kfp_pytorch.local.controllers.kserve.predictor import make_deployment

URI = "minio://mlpipeline/v2/artifacts/train/run-1/model"
TRAINED = {"storage_uri": "pvc://kfp-pytorch/run-1/job/export", "format": MODEL_FORMAT}

Object = dict[str, Any]


def parsed(metadata: Object | None = None, uri: str = URI, **inputs: Any) -> ServiceInputs:
    return parse_inputs(
        uri, TRAINED if metadata is None else metadata, **{"service_name": "digits"} | inputs
    )


def model_of(inputs: ServiceInputs) -> Object:
    return dict(inputs.predictor["model"])


def test_a_trained_model_becomes_a_service_of_our_own_format(
    check_crd: Callable[[str, Object], None],
) -> None:
    service = manifest(parsed(), None)
    check_crd("inferenceservices", service)
    predictor = service["spec"]["predictor"]
    assert predictor["model"] == {
        "modelFormat": {"name": MODEL_FORMAT},
        "protocolVersion": "v1",
        "storageUri": "pvc://kfp-pytorch/run-1/job/export",
        "args": ["--model_name=digits"],
    }
    assert service["metadata"]["labels"] == {MANAGED_BY_LABEL: "kfp-pytorch"}
    assert "ownerReferences" not in service["metadata"]
    assert len(predictor["annotations"][SPEC_HASH_LABEL]) == 16


@pytest.mark.parametrize(
    ("uri", "metadata", "expected"),
    [
        (URI, TRAINED, "pvc://kfp-pytorch/run-1/job/export"),
        (URI, {}, "s3://mlpipeline/v2/artifacts/train/run-1/model"),
        (URI, {"storage_uri": "minio://models/digits"}, "s3://models/digits"),
        ("s3://bucket/model", {"storage_uri": ""}, "s3://bucket/model"),
        ("gs://bucket/model", {}, "gs://bucket/model"),
    ],
)
def test_the_models_own_place_beats_the_artifacts_and_minio_becomes_s3(
    uri: str, metadata: Object, expected: str
) -> None:
    assert model_of(parsed(metadata, uri))["storageUri"] == expected


@pytest.mark.parametrize(
    ("metadata", "uri", "said"),
    [
        (
            {"no_export": "the model is too large."},
            URI,
            "There is no model to deploy: the model is",
        ),
        ({}, "", "it has neither a storage_uri nor a URI, as where training exported nothing"),
    ],
)
def test_a_model_that_was_not_exported_is_refused_with_the_reason(
    metadata: Object, uri: str, said: str
) -> None:
    with pytest.raises(InputError, match=r"script\.export.*help\(script\)") as raised:
        parsed(metadata, uri)
    assert said in raised.value.message
    assert raised.value.short.startswith("There is no model to deploy: ")


def test_nothing_is_asked_of_the_cluster_for_a_model_that_was_not_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kserve_deploy, "connect", pytest.fail)
    model = dsl.Model(uri=URI, metadata={"no_export": "training reported no export"})
    with pytest.raises(InputError, match="training reported no export"):
        kserve_deploy.run(dsl.Artifact(), model, service_name="digits")


@pytest.mark.parametrize("uri", ["/tmp/model", "model", "ftp://host/model", "s3://"])
def test_a_place_that_kserve_cannot_read_is_refused(uri: str) -> None:
    with pytest.raises(InputError, match="KServe cannot read the model at"):
        parsed({}, uri)


def test_a_variable_that_looks_like_a_template_reaches_the_server_byte_for_byte() -> None:
    values = {"A": "{{ messages }}", "B": "{{{x}}}", "C": "{{`", "D": "it's {x} }} {{-"}
    reference = {"secretKeyRef": {"name": "a", "key": "b"}}
    model = model_of(parsed(env=values | {"E": reference}))
    assert {"name": "E", "valueFrom": reference} in model["env"]
    predictor = {"model": model}
    service = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}}
    server = {"name": "kserve-container", "command": ["python"], "args": ["{{.Name}}"]}
    runtime = {"spec": {"containers": [server]}}
    made = make_deployment(service | {"spec": {"predictor": predictor}}, runtime, [])
    container = made["spec"]["template"]["spec"]["containers"][0]
    env = {v["name"]: v.get("value") for v in container["env"]}
    assert values.items() <= env.items()
    assert container["args"][0] == "a"


def test_the_service_account_is_the_predictors_and_the_key_the_models() -> None:
    inputs = parsed({}, service_account="models", storage_key="minio")
    assert inputs.predictor["serviceAccountName"] == "models"
    assert model_of(inputs)["storage"] == {"key": "minio", "parameters": {"type": "s3"}}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("digits", "digits"),
        ("My_Model v2.1", "my-model-v2-1"),
        ("models/digits.onnx", "models-digits-onnx"),
        ("2nd", "s-2nd"),
        ("-a-", "a"),
    ],
)
def test_a_name_becomes_one_that_a_host_may_have(given: str, name: str) -> None:
    inputs = parsed(service_name=given)
    assert inputs.service_name == name
    assert model_of(inputs)["args"] == [f"--model_name={name}"]


@pytest.mark.parametrize("given", ["", "///", "数字", None, "s-{{$.pipeline_job_uuid}}"])
def test_a_name_of_which_nothing_is_left_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="service_name"):
        parsed(service_name=given)


@pytest.mark.parametrize("given", ["gpu", "nvidia.com/", "nvidia com/gpu"])
def test_an_accelerator_that_no_node_can_have_is_refused(given: str) -> None:
    with pytest.raises(InputError, match="gpu_resource"):
        parsed(gpus=1, gpu_resource=given)


def test_a_name_too_long_for_its_host_is_refused_with_the_arithmetic() -> None:
    check_host("a" * 40, "team-vision")
    with pytest.raises(InputError, match="has at most 63") as refused:
        check_host("a" * 42, "team-vision")
    assert "has 64 characters (42 + 11 + 11)" in str(refused.value)
    assert "may have 41" in str(refused.value)


@pytest.mark.parametrize("mode", ["Standard", "RawDeployment"])
def test_a_canary_without_knative_is_refused(mode: str) -> None:
    with pytest.raises(InputError, match="all of the traffic"):
        parsed(deployment_mode=mode, canary_traffic_percent=10)


def test_a_canary_shifts_traffic_without_a_new_revision() -> None:
    ten, fifty = (parsed(deployment_mode="Knative", canary_traffic_percent=n) for n in (10, 50))
    assert ten.predictor["canaryTrafficPercent"] == 10
    assert ten.spec_hash == fifty.spec_hash


@pytest.mark.parametrize(
    ("inputs", "metadata", "message"),
    [
        ({"model_format": "pytorch"}, {}, "TorchServe, which serves only a .mar"),
        ({"model_format": "onnx"}, TRAINED, "metadata says 'kfp-pytorch'"),
        ({"deployment_mode": "raw"}, TRAINED, "deployment_mode is 'raw'"),
        ({"protocol": "v3"}, TRAINED, "protocol is 'v3'"),
        ({"min_replicas": 3, "max_replicas": 2}, TRAINED, "max_replicas is 2, less than"),
        ({"min_replicas": -1}, TRAINED, "min_replicas is -1"),
        ({"canary_traffic_percent": 101}, TRAINED, "canary_traffic_percent is 101"),
        ({"cpu": "much"}, TRAINED, "cpu is 'much'"),
        ({"env": {"A": None}}, TRAINED, r"env\['A'\] is null"),
        ({"env": {"A": "x" * 100_001}}, TRAINED, r"env\['A'\] alone 100,001"),
        ({"labels": {"a": "b c"}}, TRAINED, "labels"),
        ({"timeout": 0}, TRAINED, "timeout is 0"),
        (
            {"annotations": {"serving.kserve.io/deploymentMode": "Standard"}},
            TRAINED,
            "use deployment_mode",
        ),
        ({"annotations": {"serving.kserve.io/stop": "True"}}, TRAINED, "would never end"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    inputs: Object, metadata: Object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        parsed(metadata, **inputs)


def test_torchserve_is_used_by_those_who_name_it() -> None:
    model = model_of(parsed({}, model_format="pytorch", runtime="kserve-torchserve"))
    assert (model["modelFormat"]["name"], model["runtime"]) == ("pytorch", "kserve-torchserve")
    assert "args" not in model


def test_new_weights_in_the_old_place_make_a_new_revision() -> None:
    old, new = (parsed({**TRAINED, "sha256": digest}) for digest in ("1", "2"))
    assert old.spec_hash != new.spec_hash
    assert old.spec_hash == parsed({**TRAINED, "sha256": "1", "metric_loss": 0.1}).spec_hash


def test_what_others_wrote_on_a_service_is_kept() -> None:
    existing = manifest(parsed(labels={"team": "a"}), None)
    existing["metadata"] |= {"resourceVersion": "7", "annotations": {"theirs": "1"}}
    existing["metadata"]["labels"][MANAGED_BY_LABEL] = "Helm"
    existing["spec"]["predictor"]["annotations"]["theirs"] = "2"
    existing["spec"]["transformer"] = {"containers": [{"name": "t", "image": "t:1"}]}
    existing["status"] = {"url": "http://old"}
    changed = manifest(parsed({**TRAINED, "sha256": "2"}, annotations={"ours": "1"}), existing)
    assert changed["metadata"]["resourceVersion"] == "7"
    assert changed["metadata"]["labels"] == {"team": "a", MANAGED_BY_LABEL: "Helm"}
    assert changed["metadata"]["annotations"] == {"theirs": "1", "ours": "1"}
    assert changed["spec"]["predictor"]["annotations"]["theirs"] == "2"
    assert changed["spec"]["transformer"] == existing["spec"]["transformer"]
    assert "status" not in changed


def test_a_predictor_may_have_the_variables_that_are_taken_only_where_training_runs() -> None:
    env = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1"}
    predictor = parse_inputs("s3://bucket/m", {}, service_name="d", env=env).predictor
    assert {v["name"]: v["value"] for v in predictor["model"]["env"]} == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
