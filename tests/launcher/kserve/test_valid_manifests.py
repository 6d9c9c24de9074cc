"""Every InferenceService that typed inputs can make is valid against KServe's CRD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.kserve.manifest import manifest, parse_inputs

Object = dict[str, Any]

# 'null' and 'None' are what KFP makes of an input that nobody set.
WORDS = st.text(
    st.characters(categories=["Ll", "Lu", "Nd"], codec="ascii"), min_size=1, max_size=8
).filter(lambda word: word.lower() not in ("null", "none"))
LOWER = WORDS.map(str.lower)
SCALARS = st.one_of(WORDS, st.integers(-9, 9), st.booleans(), st.sampled_from([1e-05, 3.0, ""]))
ENV = st.dictionaries(WORDS.map("V".__add__), SCALARS, max_size=3) | st.just(
    {"TOKEN": {"secretKeyRef": {"name": "a", "key": "b"}}}
)
COUNT = st.integers(1, 600) | st.sampled_from([7.0, "3"])
QUANTITY = st.sampled_from(["1", "500m", 2.0, "0.5", "2e3"])
MEMORY = st.sampled_from(["1Gi", "512Mi", "1.5G"])
PROBE = st.fixed_dictionaries({"httpGet": st.just({"path": "/ready", "port": 8080})})
CONTAINER_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "command": st.just(["python", "-m", "server"]) | st.just("python -m server"),
    "args": st.lists(SCALARS, min_size=1, max_size=3),
    "ports": st.lists(
        st.integers(1, 65535) | st.just({"containerPort": 9000.0, "name": "h2c"}), max_size=2
    ),
    "workingDir": st.just("/srv"),
    "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent"]),
    "envFrom": st.just([{"secretRef": {"name": "a"}}]),
    "readinessProbe": PROBE,
    "livenessProbe": PROBE,
    "startupProbe": PROBE,
    "lifecycle": st.just({"preStop": {"exec": {"command": ["sleep", "5"]}}}),
    "securityContext": st.just({"runAsUser": 1000}),
}
CONTAINER = st.fixed_dictionaries({"image": st.just("a/b:1")}, optional=CONTAINER_FIELDS)
REPLICAS = {"min_replicas": st.integers(0, 2), "max_replicas": st.sampled_from([0, 3, 7.0])}
TRANSFORMER = st.fixed_dictionaries(
    {"image": st.just("a/b:1")},
    optional={**CONTAINER_FIELDS, **REPLICAS, "env": ENV, "cpu": QUANTITY, "memory": MEMORY},
)
PLACES = st.sampled_from(
    [
        *("s3://bucket/a b", "gs://bucket/model", "pvc://claim/sub/path", "minio://bucket/m"),
        *("oci://registry/model:1", "oci+native://registry/model:1", "https://host/model.tar.gz"),
    ]
)
SOURCES = st.one_of(
    st.fixed_dictionaries(
        {"model": PLACES | st.just("")},
        optional={"protocol": st.sampled_from(["v1", "v2"]), "runtime": LOWER},
    ).map(lambda each: each if each["model"] else {**each, "model": "s3://bkt/m"}),
    st.fixed_dictionaries({"storage_uri": PLACES}, optional={"model_format": LOWER}),
    st.fixed_dictionaries(
        {"storage_uri": st.just("s3://bkt/m"), "storage_key": WORDS},
        optional={
            "storage_parameters": st.fixed_dictionaries(
                {}, optional={"endpoint_url": st.just("http://minio:9000"), "verify_ssl": SCALARS}
            )
        },
    ),
    st.fixed_dictionaries({"container": CONTAINER}, optional={"storage_uri": PLACES}),
    st.just({"model_format": "huggingface", "args": ["--model_id=a/b"], "protocol": "openai"}),
    st.just({"storage_uri": "hf://a/b:main", "model_name": "b"}),
    st.just({"storage_uri": "hf://a/b", "model_format": "vLLM", "args": ["--dtype", "half"]}),
    st.just({"storage_uri": "s3://bkt/m", "model_format": "triton", "command": "tritonserver"}),
    st.just(
        {"storage_uri": "s3://bkt/m", "model_format": "onnx", "runtime": "kserve-tritonserver"}
    ),
)
SCALING = st.one_of(
    st.fixed_dictionaries({}, optional=REPLICAS),
    st.fixed_dictionaries(
        {
            "scale_metric": st.sampled_from(["cpu", "memory"]),
            "scale_target": st.integers(1, 100),
            "max_replicas": st.integers(2, 9),
        },
        optional={
            "autoscaler": st.sampled_from(["hpa", "keda"]),
            "deployment_mode": st.sampled_from(["Standard", "RawDeployment"]),
        },
    ),
    st.fixed_dictionaries(
        {
            "deployment_mode": st.sampled_from(["Knative", "Serverless"]),
            "scale_metric": st.sampled_from(["concurrency", "rps"]),
            "scale_target": st.integers(1, 500),
            "canary_traffic_percent": st.integers(-1, 100),
        }
    ),
    st.just({"autoscaler": "external", "deployment_mode": "Standard"}),
)
NODES = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a"]}]}
TERMS = {"nodeSelectorTerms": [NODES]}
REST = st.fixed_dictionaries(
    {"service_name": WORDS},
    optional={
        "namespace": LOWER,
        "transformer": TRANSFORMER,
        "cpu": QUANTITY,
        "memory": MEMORY,
        "gpus": st.integers(0, 8),
        "env": ENV,
        "volumes": st.just([{"name": "v", "emptyDir": {"medium": "Memory"}}]),
        "request_timeout": COUNT,
        "service_account": LOWER,
        "node_selector": st.dictionaries(WORDS, WORDS, max_size=2),
        "tolerations": st.just([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        "affinity": st.just(
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": TERMS}}
        ),
        "labels": st.dictionaries(WORDS, WORDS, max_size=2),
        "annotations": st.dictionaries(WORDS, SCALARS, max_size=2),
        "service_patch": st.just(
            {
                "metadata": {"labels": {"owner": "me"}},
                "spec": {
                    "predictor": {"containerConcurrency": 4, "imagePullSecrets": [{"name": "p"}]}
                },
            }
        ),
    },
)


@settings(max_examples=60, deadline=None)
@given(source=SOURCES, scaling=SCALING, rest=REST)
def test_every_service_that_the_inputs_can_make_is_valid(
    check_crd: Callable[[str, Object], None], source: Object, scaling: Object, rest: Object
) -> None:
    inputs = source | scaling | rest
    uri = inputs.pop("model", None)
    check_crd("inferenceservices", manifest(parse_inputs(uri, {}, **inputs), None))


def test_mounts_and_a_batcher_are_valid(check_crd: Callable[[str, Object], None]) -> None:
    inputs: Object = {
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        "volume_mounts": [{"name": "v", "mountPath": "/cache", "readOnly": True}],
        "batcher": {"maxBatchSize": 8.0, "maxLatency": 50},
    }
    predictor = parse_inputs("s3://bkt/m", {}, service_name="d", **inputs).predictor
    assert predictor["batcher"] == {"maxBatchSize": 8, "maxLatency": 50}
    for more in ({}, {"container": {"image": "a:1"}}):
        made = parse_inputs("s3://bkt/m", {}, service_name="d", **inputs, **more)
        check_crd("inferenceservices", manifest(made, None))
