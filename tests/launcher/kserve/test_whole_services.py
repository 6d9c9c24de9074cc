"""Services with all that one may have: a transformer, an autoscaler, a container of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    KEDA_SCALED_OBJECT,
    SPEC_HASH_LABEL,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.manifest import parse_inputs
from kfp_pytorch.launcher.steps.kserve_deploy import Served, describe

NAME = "digits"
URL = "http://digits.default.example.com"
TRANSFORMER = {"image": "t:1"}

Object = dict[str, Any]
Start = Callable[..., Any]
Until = Callable[..., Any]
KServe = ThreadedServer = Any


def transformer_deployment(carried: str, available: int = 1) -> Object:
    name = f"{NAME}-transformer"
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {SPEC_HASH_LABEL: carried}},
        "spec": {"containers": [{"name": "kserve-container", "image": "t:1"}]},
    }
    counts = {"replicas": 1, "updatedReplicas": 1, "availableReplicas": available}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
        "status": {"observedGeneration": 1, **counts},
    }


def test_a_transformer_of_the_new_revision_is_waited_for_too(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(transformer=TRANSFORMER)
    until(kserve.service)
    kserve.serves()
    assert step.goes_on(), "there is no transformer yet"
    carried = kserve.service()["spec"]["transformer"]["annotations"][SPEC_HASH_LABEL]
    wanted = transformer_deployment(carried)
    kserve._create(DEPLOYMENT, {k: v for k, v in wanted.items() if k != "status"})
    name = wanted["metadata"]["name"]
    waiting = transformer_deployment(carried, available=0)["status"]
    kserve._mutate(DEPLOYMENT, name, lambda obj: obj.update(status=waiting), "status")
    assert step.goes_on(), "no pod of it is available"
    kserve._mutate(DEPLOYMENT, name, lambda obj: obj.update(status=wanted["status"]), "status")
    assert step.succeeded().url == f"{URL}/v1/models/digits:predict"


def test_a_transformer_that_does_not_come_is_named(
    kserve: KServe, start: Start, until: Until, unnoticed: Any
) -> None:
    with unnoticed():
        step = start(transformer=TRANSFORMER, timeout=1)
        until(kserve.service)
        kserve.serves()
    first = step.failed().splitlines()[0]
    assert "still waits for the transformer: the controller to take up the new spec" in first


def test_keda_is_refused_before_anything_is_written_where_there_is_none(
    kserve: KServe, start: Start, server: ThreadedServer
) -> None:
    scaled = {"scale_metric": "cpu", "scale_target": 60, "max_replicas": 3}
    message = start(autoscaler="keda", **scaled).failed(InputError)
    assert f"no {KEDA_SCALED_OBJECT.plural}.keda.sh" in message
    assert kserve.service() is None


def test_a_container_of_ones_own_is_created_and_left_alone_the_next_time(
    kserve: KServe, start: Start, until: Until, server: ThreadedServer
) -> None:
    def fills_in(service: Object) -> None:
        (container,) = service["spec"]["predictor"]["containers"]
        container["resources"] = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}

    server.call(server.api.add_mutating_webhook, INFERENCE_SERVICE, fills_in)
    inputs: Object = {
        "container": {"image": "a:1", "ports": [9000]},
        "storage_uri": "pvc://kfp-pytorch/export",
        "cpu": 1.0,
    }
    step = start(**inputs)
    until(kserve.service)
    kserve.serves()
    step.succeeded()
    before = kserve.service()["metadata"]["resourceVersion"]
    start(**inputs).succeeded()
    assert kserve.service()["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ({"storage_uri": "s3://bkt/m", "model_format": "triton"}, "/v2/models/digits/infer"),
        ({"storage_uri": "s3://bkt/m", "protocol": "v2"}, "/v2/models/digits/infer"),
        ({"storage_uri": "s3://bkt/m", "model_name": "other"}, "/v1/models/other:predict"),
        ({"storage_uri": "hf://a/b", "protocol": "openai"}, "/openai/v1"),
        ({"storage_uri": "hf://a/b", "model_format": "vLLM"}, "/v1"),
    ],
)
def test_the_url_is_of_the_servers_protocol_and_of_its_name_for_the_model(
    kserve: KServe, start: Start, until: Until, inputs: Object, path: str
) -> None:
    step = start(**inputs)
    until(kserve.service)
    kserve.serves()
    assert step.succeeded().url == f"{URL}{path}"


def test_the_artifact_says_in_flat_texts_what_serves_and_where() -> None:
    inputs = parse_inputs("pvc://c/m", {}, service_name=NAME, transformer=TRANSFORMER)
    status = {
        "url": URL,
        "address": {"url": "http://digits.default.svc.cluster.local"},
        "deploymentMode": "Standard",
    }
    assert describe(Served({"status": status}), inputs, "team") == {
        "name": NAME,
        "namespace": "team",
        "revision": inputs.spec_hash,
        "mode": "Standard",
        "url": f"{URL}/v1/models/digits:predict",
        "cluster_url": "http://digits.default.svc.cluster.local/v1/models/digits:predict",
        "canary_url": "",
        "stable_url": "",
        "base_url": URL,
        "cluster_base_url": "http://digits.default.svc.cluster.local",
        "model_name": NAME,
        "protocol": "v1",
        "storage_uri": "pvc://c/m",
    }


@pytest.mark.parametrize("observed", [1, 99])
def test_an_observed_generation_that_never_is_the_services_is_no_evidence(
    kserve: KServe, deployed: Object, update: Callable[..., Any], observed: int
) -> None:
    """KServe copies it from a child object."""
    step = update()
    kserve.says("True", observedGeneration=observed)
    assert step.goes_on(), "nothing of the new revision runs"
    kserve.rolls_out()
    step.succeeded()
    assert kserve.service()["metadata"]["generation"] != observed
