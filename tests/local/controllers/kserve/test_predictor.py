"""The shipped manifests, and the predictor's objects from a runtime and a service."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_pytorch.launcher import constants
from kfp_pytorch.local.controllers.kserve.predictor import make_autoscaler, make_deployment
from kfp_pytorch.local.controllers.kserve.runtimes import Refusal, select_runtime
from kfp_pytorch.local.controllers.kserve.storage import storage_variables

ROOT = Path(__file__).resolve().parents[4]
NAMESPACE = "default"

Object = dict[str, Any]


def manifest_runtime(file: str = "serving-runtime.yaml") -> Object:
    return dict(yaml.safe_load((ROOT / "manifests" / file).read_text()))


def runtime(name: str = "kfp-pytorch", **changes: Any) -> Object:
    made = manifest_runtime()
    made["metadata"] = {"name": name, "namespace": NAMESPACE}
    made["spec"] |= changes
    return made


def service(uri: str = "pvc://models/digits/export", **predictor: Any) -> Object:
    model = {"modelFormat": {"name": "kfp-pytorch"}, "storageUri": uri}
    model |= predictor.pop("model", {})
    metadata = {"name": "digits", "namespace": NAMESPACE, "uid": "u-1"}
    return {"metadata": metadata, "spec": {"predictor": {"model": model, **predictor}}}


# The manifests


def test_the_serving_runtime_is_valid_and_names_what_the_project_builds(
    check_crd: Callable[[str, Object], None],
) -> None:
    made = manifest_runtime()
    check_crd("servingruntimes", made)
    formats = made["spec"]["supportedModelFormats"]
    assert [f["name"] for f in formats] == [constants.MODEL_FORMAT]
    container = made["spec"]["containers"][0]
    assert container["image"] == constants.SERVING_IMAGE
    assert f"--model_dir={constants.MODEL_MOUNT}" in container["args"]
    security = container["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_runtime_for_grpc_differs_by_its_port_only(
    check_crd: Callable[[str, Object], None],
) -> None:
    made, expected = manifest_runtime("serving-runtime-grpc.yaml"), manifest_runtime()
    check_crd("servingruntimes", made)
    expected["metadata"]["name"] = "kfp-pytorch-grpc"
    expected["spec"]["protocolVersions"] = ["grpc-v2"]
    container = expected["spec"]["containers"][0]
    container["args"].append("--grpc_port=8081")
    # Knative takes one port, of one of two names.
    container["ports"] = [{"name": "h2c", "containerPort": 8081, "protocol": "TCP"}]
    assert made == expected


def test_the_claim_is_the_one_that_the_pipelines_write_to() -> None:
    claim = yaml.safe_load((ROOT / "manifests" / "pvc.yaml").read_text())
    assert f"pvc://{claim['metadata']['name']}" == constants.DEFAULT_OUTPUT_URI


# The choice of a runtime


def test_a_runtime_is_chosen_by_its_format() -> None:
    other = runtime("sklearn", supportedModelFormats=[{"name": "sklearn", "autoSelect": True}])
    assert select_runtime(service(), [other, runtime()])["metadata"]["name"] == ("kfp-pytorch")


@pytest.mark.parametrize(
    ("protocol", "chosen"),
    [
        ({}, "kfp-pytorch"),
        ({"protocolVersion": "v2"}, "kfp-pytorch"),
        ({"protocolVersion": "grpc-v2"}, "kfp-pytorch-grpc"),
    ],
)
def test_of_the_shipped_runtimes_one_is_chosen_by_protocol(protocol: Object, chosen: str) -> None:
    shipped = [manifest_runtime("serving-runtime-grpc.yaml"), manifest_runtime()]
    assert select_runtime(service(model=protocol), shipped)["metadata"]["name"] == chosen


@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        ({"modelFormat": {"name": "onnx"}}, {}, "NoSupportingRuntime"),
        ({"modelFormat": {"name": "kfp-pytorch", "version": "2"}}, {}, "NoSupportingRuntime"),
        ({"protocolVersion": "grpc-v2"}, {}, "NoSupportingRuntime"),
        ({}, {"disabled": True}, "NoSupportingRuntime"),
        ({"runtime": "gone"}, {}, "RuntimeNotRecognized"),
        ({"runtime": "kfp-pytorch"}, {"disabled": True}, "RuntimeDisabled"),
        ({"runtime": "kfp-pytorch", "protocolVersion": "v3"}, {}, "NoSupportingRuntime"),
        (
            {"runtime": "kfp-pytorch", "modelFormat": {"name": "onnx"}},
            {},
            "NoSupportingRuntime",
        ),
    ],
)
def test_no_runtime_that_serves_the_model_is_kserves_refusal(
    model: Object, changes: Object, reason: str
) -> None:
    with pytest.raises(Refusal) as refused:
        select_runtime(service(model=model), [runtime(**changes)])
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (None, "kfp-pytorch has no command, and an image .kfp-pytorch-serving:"),
        (["torchserve-nonsuch"], "kfp-pytorch runs torchserve-nonsuch, which is not on this"),
    ],
)
def test_a_runtime_whose_program_is_not_here_is_refused_by_name(command: Any, words: str) -> None:
    other = runtime()
    other["spec"]["containers"][0]["command"] = command
    with pytest.raises(Refusal, match=words) as refused:
        make_deployment(service(), other, [])
    assert refused.value.reason == "InvalidPredictorSpec"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"predictor": {"containers": [{"name": "c", "image": "i:1"}]}},
            "the predictor's container has no command, and an image .i:1.",
        ),
        (
            {"predictor": {"containers": [{"name": "c", "command": ["nonsuch-server"]}]}},
            "the predictor's container runs nonsuch-server, which is not on this",
        ),
        (service()["spec"] | {"transformer": {}}, "its transformer is a second server"),
        (service("hf://a/b")["spec"], "hf://a/b, which is not read on this machine"),
        (service("oci://a/b")["spec"], "oci://a/b, which is not read on this machine"),
    ],
)
def test_what_only_a_cluster_can_serve_is_refused_by_name(spec: Object, words: str) -> None:
    made = service() | {"spec": spec}
    chosen = select_runtime(made, [runtime()])
    with pytest.raises(Refusal, match=words):
        make_deployment(made, chosen, [])


def test_a_runtime_without_image_and_command_is_refused_too() -> None:
    other = runtime()
    del other["spec"]["containers"][0]["command"], other["spec"]["containers"][0]["image"]
    with pytest.raises(Refusal, match="has no command"):
        make_deployment(service(), other, [])


# What is made of a service


def test_the_models_container_is_the_runtimes_overridden_by_the_model() -> None:
    model = {
        "args": ["--max_body_mib=4"],
        "env": [{"name": "A", "value": "1"}],
        "resources": {"limits": {"cpu": "4"}},
    }
    made = make_deployment(
        service(model=model, minReplicas=2, annotations={"a": "b"}), runtime(), []
    )
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == [
        "--model_name=digits",
        "--model_dir=/mnt/models",
        "--http_port=8080",
        "--max_body_mib=4",
    ]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/models/digits/ready"
    assert {"name": "A", "value": "1"} in container["env"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert "replicas" not in made["spec"]
    assert made["spec"]["template"]["metadata"]["annotations"] == {"a": "b"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"


@pytest.mark.parametrize(
    ("least", "most", "bounds"),
    [(None, None, (1, 1)), (0, 0, (1, 1)), (2, 1, (2, 2)), (1, 4, (1, 4))],
)
def test_the_replicas_are_the_autoscalers(
    least: int | None, most: int | None, bounds: tuple[int, int]
) -> None:
    given = {"minReplicas": least, "maxReplicas": most}
    made = make_autoscaler(service(**{k: v for k, v in given.items() if v is not None}))
    assert made["metadata"]["name"] == "digits-predictor"
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == bounds


def test_a_model_on_a_claim_is_mounted_and_one_in_a_bucket_downloaded() -> None:
    spec = make_deployment(service(), runtime(), [])["spec"]["template"]["spec"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models"}
    assert spec["containers"][0]["volumeMounts"] == [
        {
            "name": "kserve-pvc-source",
            "mountPath": "/mnt/models",
            "subPath": "digits/export",
            "readOnly": True,
        }
    ]
    assert "initContainers" not in spec
    bucket = service("s3://models/digits")
    spec = make_deployment(bucket, runtime(), [])["spec"]["template"]["spec"]
    assert spec["initContainers"][0]["args"] == ["s3://models/digits", "/mnt/models"]
    assert spec["initContainers"][0]["name"] == "storage-initializer"


def test_the_credentials_of_a_bucket_come_from_the_service_accounts_secret() -> None:
    secret = {
        "metadata": {
            "name": "minio",
            "annotations": {
                "serving.kserve.io/s3-endpoint": "127.0.0.1:9000",
                "serving.kserve.io/s3-usehttps": "0",
            },
        },
        "data": {"AWS_ACCESS_KEY_ID": base64.b64encode(b"key").decode()},
    }
    account = {"secrets": [{"name": "minio"}]}
    variables = storage_variables(service(), account, {"minio": secret}.get)
    by_name = {each["name"]: each for each in variables}
    assert by_name["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "minio"
    assert by_name["AWS_ENDPOINT_URL"]["value"] == "http://127.0.0.1:9000"
    assert storage_variables(service(), None, {}.get) == []


def test_the_predictor_listens_on_the_address_of_the_local_cluster() -> None:
    made = make_deployment(service(), runtime(), [])
    variables = made["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": constants.SERVING_HOST_ENV, "value": "127.0.0.1"} in variables


def test_a_runtime_without_port_and_probe_gets_kserves_own() -> None:
    bare = runtime()
    for field in ("ports", "readinessProbe"):
        del bare["spec"]["containers"][0][field]
    (made,) = make_deployment(service(), bare, [])["spec"]["template"]["spec"]["containers"]
    assert made["ports"][0]["containerPort"] == 8080
    assert made["readinessProbe"]["tcpSocket"] == {"port": 8080}
