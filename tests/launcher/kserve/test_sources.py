"""What is served: one model of an artifact, a URI, a server's own or a container's."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.constants import MODEL_FORMAT
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.manifest import ServiceInputs, manifest, parse_inputs

Object = dict[str, Any]
TRITON_MODEL = {"storage_uri": "pvc://c/job/export", "format": MODEL_FORMAT, "triton": "resnet"}
CONTAINER = {"image": "a/b:1", "command": ["serve"], "args": ["--x={{y}}", "$(HOME)"]}


def parsed(
    model: str | None = None, metadata: Object | None = None, **inputs: Any
) -> ServiceInputs:
    return parse_inputs(model, metadata or {}, **{"service_name": "digits"} | inputs)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("minio://bucket/a", "s3://bucket/a"),
        ("pvc://claim//a", "pvc://claim/a"),
        ("hf://owner/model:main", "hf://owner/model:main"),
        ("oci://registry/model:1", "oci://registry/model:1"),
        ("https://host/m.tar.gz", "https://host/m.tar.gz"),
    ],
)
def test_a_plain_uri_is_served_like_a_models(given: str, read: str) -> None:
    assert parsed(storage_uri=given).predictor["model"]["storageUri"] == read


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "There is no model to deploy: give model, storage_uri"),
        ({"model": "s3://bkt/a", "storage_uri": "s3://bkt/b"}, "Both model and storage_uri"),
        ({"model": "s3://bkt/a", "container": CONTAINER, "runtime": "r"}, "runtime is given tog"),
        ({"container": CONTAINER, "model_format": "onnx"}, "model_format is given together with"),
        ({"container": CONTAINER, "args": ["a"]}, "args is given together with container"),
        ({"container": CONTAINER, "storage_key": "k"}, "service_account only"),
        ({"container": {"command": ["a"]}}, "container has no image"),
        ({"container": CONTAINER | {"env": [1]}}, "container may not have env; use the input env"),
        ({"container": CONTAINER | {"name": "x"}}, "container may not have name"),
        ({"container": CONTAINER | {"imag": "x"}}, "unknown field 'imag'"),
        ({"container": CONTAINER | {"ports": [0]}}, r"container.ports\[0\] is 0"),
        ({"container": CONTAINER, "env": {"STORAGE_URI": "s3://a/b"}}, "use storage_uri or model"),
        ({"storage_uri": "/tmp/model"}, "KServe cannot read the model at '/tmp/model'"),
        ({"storage_uri": "ftp://h/m"}, "KServe cannot read the model at"),
        ({"storage_uri": "hf://model"}, "hf://OWNER/MODEL"),
        ({"storage_uri": "https://[::1"}, "is no URL"),
        ({"storage_uri": "https:///model.tar"}, "KServe cannot read|must begin with"),
        ({"storage_uri": "s3://bkt/m", "model_format": "a b"}, "model_format is 'a b'"),
        ({"storage_uri": "s3://bkt/m", "model_format": "x" * 64}, "at most 63 letters"),
        ({"storage_uri": "s3://bkt/m", "storage_key": "a/b"}, "storage_key is 'a/b'"),
        ({"storage_uri": "pvc://claim/../x"}, "cannot be a folder's name"),
        ({"storage_uri": "s3://B/x"}, "'B' is no bucket"),
        ({"storage_uri": "gs://bkt/m", "storage_key": "k"}, "only for s3://, hdfs://, webhdfs://"),
        ({"storage_uri": "s3://bkt/m", "storage_parameters": {"region": "a"}}, "without storage_k"),
        (
            {"model_format": "huggingface", "args": ["--model_id=a/b"], "model": "s3://bkt/m"},
            "args has --model_id=a/b",
        ),
        ({"model_format": "vLLM", "args": ["--model=a/b"]}, "There is no model to deploy"),
        ({"storage_uri": "s3://bkt/m", "model_format": "triton", "protocol": "v1"}, "v2 only"),
        (
            {"storage_uri": "s3://bkt/m", "runtime": "kserve-tritonserver", "protocol": "openai"},
            "Triton has v2 only",
        ),
        ({"storage_uri": "s3://bkt/m", "model_format": "vLLM", "protocol": "v2"}, "openai only"),
        ({"storage_uri": "s3://bkt/m", "protocol": "openai"}, "has v1, v2, grpc only"),
        ({"model": "s3://bkt/m", "model_name": "a b"}, "model_name is 'a b'"),
        (
            {"model": "s3://bkt/m", "model_name": "a", "args": ["--model_name=b"]},
            "the server is told 'b'",
        ),
        ({"model": "s3://bkt/m", "args": ["x" * 100_001]}, r"args\[0\] alone 100,001"),
        ({"model": "s3://bkt/m", "transformer": {"args": ["a"]}}, "transformer has no image"),
        (
            {
                "model": "s3://bkt/m",
                "transformer": {"image": "i", "min_replicas": 3, "max_replicas": 2},
            },
            "transformer.max_replicas is 2, less than transformer.min_replicas",
        ),
        ({"model": "s3://bkt/m", "volumes": [{"name": "v"}]}, "a name and one source"),
        (
            {"model": "s3://bkt/m", "volumes": [{"name": "v", "emptyDir": {}}] * 2},
            "the second volume 'v'",
        ),
        (
            {"model": "s3://bkt/m", "volume_mounts": [{"name": "v", "mountPath": "x"}]},
            "begins with /",
        ),
        (
            {"model": "s3://bkt/m", "volume_mounts": [{"name": "v", "mountPath": "/mnt/models/"}]},
            "where KServe puts the model",
        ),
        (
            {"container": CONTAINER, "volume_mounts": [{"name": "v", "mountPath": "/x"}]},
            "names the volume 'v', and volumes has none",
        ),
        ({"model": "s3://bkt/m", "protocol": "v2", "batcher": {"maxBatchSize": 2}}, "of v1 only"),
        ({"model": "s3://bkt/m", "batcher": {"timeout": 2}}, "unknown field 'timeout'"),
        ({"model": "s3://bkt/m", "batcher": {"maxBatchSize": 0}}, "batcher.maxBatchSize is 0"),
        ({"model": "s3://bkt/m", "affinity": {"node": {}}}, "unknown field 'node'"),
    ],
)
def test_inputs_that_contradict_each_other_are_refused_by_name(inputs: Object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parsed(**inputs)


def test_a_secret_in_the_parameters_of_a_storage_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="storage-config") as refused:
        parsed(
            storage_uri="s3://bkt/m",
            storage_key="k",
            storage_parameters={"secret_access_key": "hunter2"},
        )
    assert "hunter2" not in refused.value.message


def test_a_password_in_a_models_address_is_refused_and_not_shown() -> None:
    with pytest.raises(InputError, match="holds a user's name") as refused:
        parsed(storage_uri="https://me:hunter2@example.com/model.tar.gz")
    assert "hunter2" not in refused.value.message


def test_a_bucket_with_an_endpoint_is_read_with_the_credentials_of_a_key() -> None:
    """KServe merges the parameters into the entry of the Secret that the key names."""
    inputs = parsed(
        "minio://mlpipeline/m",
        storage_key="kfp",
        storage_parameters={"endpoint_url": "http://minio:9000", "verify_ssl": False},
    )
    assert inputs.predictor["model"]["storage"] == {
        "key": "kfp",
        "parameters": {
            "type": "s3",
            "endpoint_url": "http://minio:9000",
            "verify_ssl": "false",
        },
    }


def test_huggingfaces_server_fetches_a_model_itself_or_kserve_does() -> None:
    args = ["--model_name=llama", "--model_id=meta/llama"]
    itself = parsed(model_format="huggingface", args=args, protocol="openai")
    assert itself.predictor["model"] == {"modelFormat": {"name": "huggingface"}, "args": args}
    assert itself.source.name == "llama"
    assert itself.source.path == "/openai/v1"
    kserve = parsed(storage_uri="hf://meta/llama", model_name="llama")
    assert kserve.predictor["model"] == {
        "modelFormat": {"name": "huggingface"},
        "protocolVersion": "v1",
        "storageUri": "hf://meta/llama",
        "args": ["--model_name=llama"],
    }
    assert kserve.source.path == "/v1/models/llama:predict"


def test_vllm_is_told_the_models_name_and_asked_by_openais_protocol() -> None:
    inputs = parsed(storage_uri="hf://a/b", model_format="vLLM", args=["--dtype", "half"])
    assert inputs.predictor["model"]["args"] == ["--dtype", "half"]
    assert (inputs.source.name, inputs.source.path) == ("digits", "/v1")
    named = parsed(storage_uri="hf://a/b", model_format="vLLM", model_name="b")
    assert named.predictor["model"]["args"] == ["--served-model-name=b"]
    told = parsed(storage_uri="hf://a/b", model_format="vLLM", args=["--served-model-name", "c"])
    assert told.source.name == "c"


@pytest.mark.parametrize("model_format", ["triton", "onnx"])
def test_triton_gets_the_repository_of_an_export_and_is_asked_for_the_model_in_it(
    model_format: str,
) -> None:
    inputs = parsed("s3://bkt/m", TRITON_MODEL, model_format=model_format)
    model = inputs.predictor["model"]
    assert model["storageUri"] == "pvc://c/job/export/triton"
    assert model["modelFormat"] == {"name": model_format}
    assert inputs.source.name == "resnet"
    if model_format == "triton":
        assert model["protocolVersion"] == "v2"
        assert inputs.source.path == "/v2/models/resnet/infer"
    with pytest.raises(InputError, match="calls the model 'resnet'"):
        parsed("s3://bkt/m", TRITON_MODEL, model_format=model_format, model_name="other")
    without = {key: value for key, value in TRITON_MODEL.items() if key != "triton"}
    with pytest.raises(InputError, match="metadata says 'kfp-pytorch'"):
        parsed("s3://bkt/m", without, model_format=model_format)


def test_the_model_that_is_exported_for_triton_too_is_served_by_our_own_predictor() -> None:
    inputs = parsed("s3://bkt/m", TRITON_MODEL)
    assert inputs.predictor["model"]["storageUri"] == "pvc://c/job/export"
    assert inputs.source.name == "digits"


def test_a_container_of_ones_own_gets_the_model_and_keeps_to_the_restricted_standard() -> None:
    inputs = parsed(
        storage_uri="s3://bkt/m",
        container=CONTAINER | {"ports": [9000], "securityContext": {"runAsUser": 7}},
        env={"A": "{{b}}"},
        cpu="1",
        protocol="v2",
    )
    assert "model" not in inputs.predictor
    assert inputs.predictor["containers"] == [
        {
            "name": "kserve-container",
            "image": "a/b:1",
            "command": ["serve"],
            # KServe takes only a runtime's container for a template; Kubernetes expands $(NAME).
            "args": ["--x={{y}}", "$$(HOME)"],
            "ports": [{"protocol": "TCP", "containerPort": 9000}],
            "env": [
                {"name": "A", "value": "{{b}}"},
                {"name": "PROTOCOL", "value": "v2"},
                {"name": "STORAGE_URI", "value": "s3://bkt/m"},
            ],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
                "runAsUser": 7,
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
        }
    ]
    with pytest.raises(InputError, match="runAsUser 0 with runAsNonRoot"):
        parsed(container=CONTAINER | {"securityContext": {"runAsUser": 0}})


def test_a_container_may_have_its_model_within() -> None:
    inputs = parsed(container=CONTAINER)
    assert inputs.source.uri == ""
    assert "env" not in inputs.predictor["containers"][0]


def test_arguments_and_command_reach_a_runtimes_container_byte_for_byte() -> None:
    """KServe takes the container for a template of Go, Kubernetes expands $(NAME)."""
    model = parsed("s3://bkt/m", command="python -m x", args=["{{a}}", "$(HOME)"]).predictor[
        "model"
    ]
    assert model["command"] == ["python", "-m", "x"]
    assert model["args"] == ["--model_name=digits", "{{`{{`}}a}}", "$$(HOME)"]


def test_a_transformer_is_before_the_predictor_and_of_the_same_revision() -> None:
    inputs = parsed(
        storage_uri="s3://bkt/m",
        model_format="triton",
        model_name="resnet",
        service_account="models",
        transformer={"image": "t:1", "env": {"A": 1}, "cpu": "1", "max_replicas": 3},
    )
    made = manifest(inputs, None)["spec"]
    (container,) = made["transformer"]["containers"]
    assert container["args"] == ["--model_name", "resnet"]
    assert {"name": "PROTOCOL", "value": "v2"} in container["env"]
    assert container["resources"]["limits"] == {"cpu": "1"}
    assert made["transformer"]["serviceAccountName"] == "models"
    assert (made["transformer"]["minReplicas"], made["transformer"]["maxReplicas"]) == (1, 3)
    assert made["transformer"]["annotations"] == made["predictor"]["annotations"]
    # A later deployment without one takes it away, but not somebody else's.
    later = parsed(storage_uri="s3://bkt/m", model_format="triton", model_name="resnet")
    assert "transformer" not in manifest(later, {"metadata": {}, "spec": made})["spec"]
    del made["transformer"]["annotations"]
    assert "transformer" in manifest(later, {"metadata": {}, "spec": made})["spec"]
