"""Canaries with processes, in both modes: shares, addresses, and no request that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import urllib3
from harness.load import Load
from harness.objects.inference import NAMESPACE, create, put_model, service, until_ready

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    KNATIVE_REVISION,
    POD,
    SERVICE,
    SERVING_RUNTIME,
)
from kfp_pytorch.local.apiserver.store.api import ApiError
from kfp_pytorch.local.controllers.kserve.knative.revisions import DEFINITION
from kfp_pytorch.local.controllers.kserve.knative.traffic import TAG_ANNOTATION
from kfp_pytorch.local.controllers.kubernetes.status import condition

Object = dict[str, Any]
Story = Callable[[Any], Awaitable[None]]
MODE = "serving.kserve.io/deploymentMode"


async def get(url: str) -> str:
    answer = await asyncio.to_thread(urllib3.request, "GET", url, retries=False)
    return f"{answer.status} {answer.data.decode()}"


@asynccontextmanager
async def loaded(url: str) -> AsyncIterator[Load]:
    """Requests that are sent all the time; what answers them runs in this event loop."""
    with Load(url) as load:
        try:
            yield load
        finally:
            await asyncio.to_thread(load.stop)


def knative(uri: str) -> Object:
    made = service(uri, annotations={TAG_ANNOTATION: "true"})
    made["metadata"] = {"name": "digits", "namespace": NAMESPACE, "annotations": {MODE: "Knative"}}
    return made


def change(cluster: Any, fn: Callable[[Object], Any]) -> Object:
    changed: Object = cluster.api.mutate(
        INFERENCE_SERVICE, NAMESPACE, "digits", lambda obj: fn(obj["spec"]) and None
    )
    return changed


async def until(cluster: Any, holds: Callable[[Object], Any]) -> Object:
    found: Object = await cluster.until(INFERENCE_SERVICE, "digits", holds)
    return found


def entry(uri: str, **predictor: Any) -> Object:
    model = {"modelFormat": {"name": "kfp-pytorch"}, "storageUri": uri}
    return {"trafficPercent": 0, "predictor": {"name": "canary", "model": model, **predictor}}


def pods(cluster: Any) -> list[Object]:
    return list(cluster.api.list(POD, NAMESPACE))


def canary_of(obj: Object) -> Object:
    return ((obj.get("status") or {}).get("canaryStatuses") or [{}])[0]


def test_a_canary_is_asked_at_its_own_service_and_promoted_in_place(
    on_kserve: Callable[..., None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, put_model(cluster, "one", "first"))
        url = (await until_ready(cluster))["status"]["url"]
        two = put_model(cluster, "two", "second")
        change(cluster, lambda spec: spec.update(canary=[entry(two)]))
        async with loaded(url) as load:
            found = await until(cluster, lambda obj: canary_of(obj).get("ready"))
            assert condition(found, "CanaryPredictorReady")["reason"] == "AllCanariesReady"
            made = cluster.api.get(SERVICE, NAMESPACE, "digits-canary-predictor")["spec"]
            assert (made["type"], made["externalName"]) == ("ExternalName", "localhost")
            assert await get(f"http://localhost:{made['ports'][0]['port']}") == "200 digits second"
            assert set(load.answers) == {"digits first"}
            # As KServe says of its own Deployment; the canary stays until the new one serves.
            change(cluster, lambda spec: spec["predictor"]["model"].update(storageUri=two))
            while "digits second" not in load.answers:
                await asyncio.sleep(0.02)
            await until_ready(cluster)
            change(cluster, lambda spec: spec.pop("canary"))
            await cluster.deleted(DEPLOYMENT, "digits-canary-predictor")
            await cluster.deleted(SERVICE, "digits-canary-predictor")
            found = await until(cluster, lambda obj: not canary_of(obj))
            assert not condition(found, "CanaryPredictorReady")
        assert load.failed == []

    on_kserve(story)


def test_a_canary_that_is_never_ready_leaves_the_stable_one_serving(
    on_kserve: Callable[..., None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, put_model(cluster, "one", "first"))
        url = (await until_ready(cluster))["status"]["url"]
        async with loaded(url) as load:
            change(cluster, lambda spec: spec.update(canary=[entry("pvc://models/none")]))
            found = await until(cluster, canary_of)
            assert canary_of(found) == {"name": "canary", "ready": False, "trafficPercent": 0}
            assert condition(found, "Ready")["status"] == "True"
            while not any("canary" in pod["metadata"]["name"] for pod in pods(cluster)):
                await asyncio.sleep(0.02)
        assert load.failed == []
        assert set(load.answers) == {"digits first"}

    on_kserve(story)


@pytest.mark.parametrize(
    ("annotations", "canary", "said"),
    [
        ({MODE: "RawDeployment"}, {}, "only supported in Standard deployment mode"),
        ({MODE: "Standard"}, {"maxReplicas": 2}, "must not set maxReplicas"),
        ({MODE: "Standard"}, {"minReplicas": 2}, r"minReplicas \(2\) must not exceed stable"),
        ({MODE: "Standard"}, {"name": ""}, "predictor.name is required"),
    ],
)
def test_a_canary_that_kserve_refuses_is_refused(
    on_kserve: Callable[..., None], annotations: Object, canary: Object, said: str
) -> None:
    async def story(cluster: Any) -> None:
        await asyncio.sleep(0)
        made = service()
        made["metadata"] = {"name": "digits", "namespace": NAMESPACE, "annotations": annotations}
        made["spec"]["canary"] = [entry("pvc://models/two", **canary)]
        with pytest.raises(ApiError, match=said):
            cluster.api.create(INFERENCE_SERVICE, made)

    on_kserve(story)


def shares(obj: Object) -> dict[str, int]:
    predictor = ((obj.get("status") or {}).get("components") or {}).get("predictor") or {}
    return {each["revisionName"][-1:]: each["percent"] for each in predictor.get("traffic", [])}


def test_a_server_that_ends_at_once_when_told_has_answered_what_it_was_asked(
    on_kserve: Callable[..., None],
) -> None:
    async def story(cluster: Any) -> None:
        runtime = cluster.api.get(SERVING_RUNTIME, NAMESPACE, "kfp-pytorch")
        command = runtime["spec"]["containers"][0]["command"]
        lines = [line for line in command[2].splitlines() if "signal.signal" not in line]
        at = next(i for i, line in enumerate(lines) if "body =" in line)
        lines.insert(at, "        import time; time.sleep(0.1)")
        command[2] = "\n".join(lines)
        cluster.api.update(SERVING_RUNTIME, runtime)
        create(cluster, put_model(cluster, "one", "first"))
        url = (await until_ready(cluster))["status"]["url"]
        two = put_model(cluster, "two", "second")
        async with loaded(url) as load, loaded(url) as other:
            change(cluster, lambda spec: spec["predictor"]["model"].update(storageUri=two))
            while load.answers["digits second"] < 3 or len(pods(cluster)) > 1:
                await asyncio.sleep(0.02)
        assert load.failed == other.failed == []
        assert load.answers["digits first"] > 0

    on_kserve(story)


@pytest.mark.slow
def test_knative_splits_the_traffic_and_gives_the_canary_an_address(
    on_kserve: Callable[..., None],
) -> None:
    async def story(cluster: Any) -> None:
        made = service(put_model(cluster, "one", "first"), annotations={TAG_ANNOTATION: "true"})
        made["metadata"] = {
            "name": "digits",
            "namespace": NAMESPACE,
            "annotations": {MODE: "Knative"},
        }
        cluster.api.create(INFERENCE_SERVICE, made)
        url = (await until_ready(cluster))["status"]["url"]
        two, three = put_model(cluster, "two", "second"), put_model(cluster, "three", "third")

        def deploy(uri: str) -> Callable[[Object], None]:
            def write(spec: Object) -> None:
                spec["predictor"]["canaryTrafficPercent"] = 20
                spec["predictor"]["model"]["storageUri"] = uri

            return write

        async with loaded(url) as load:
            change(cluster, deploy(two))
            found = await until(cluster, lambda obj: shares(obj) == {"2": 20, "1": 80})
            urls = {
                t["tag"]: t["url"] for t in found["status"]["components"]["predictor"]["traffic"]
            }
            assert await get(urls["latest"]) == "200 digits second"
            assert await get(urls["prev"]) == "200 digits first"
            load.answers.clear()
            while sum(load.answers.values()) < 50:
                await asyncio.sleep(0.02)
            total = sum(load.answers.values())
            assert load.answers["digits second"] == pytest.approx(total / 5, abs=3)
            change(cluster, lambda spec: spec["predictor"].update(canaryTrafficPercent=0))
            await until(cluster, lambda obj: shares(obj) == {"2": 0, "1": 100})
            change(cluster, deploy(three))
            await until(cluster, lambda obj: shares(obj) == {"3": 20, "1": 80})
            change(cluster, lambda spec: spec["predictor"].pop("canaryTrafficPercent"))
            found = await until(cluster, lambda obj: shares(obj) == {"3": 100})
            assert found["status"]["url"] == url
            assert condition(found, "Ready")["status"] == "True"
            # The others have no pods when what they were asked is answered.
            while len(pods(cluster)) > 1:
                await asyncio.sleep(0.02)
            assert await get(url) == "200 digits third"
        assert load.failed == []
        assert len(cluster.api.list(KNATIVE_REVISION, NAMESPACE)) == 3

    on_kserve(story, definitions=[DEFINITION])


def test_a_revision_that_fails_is_reported_and_the_one_before_serves(
    on_kserve: Callable[..., None],
) -> None:
    async def story(cluster: Any) -> None:
        made = service(put_model(cluster, "one", "first"))
        made["metadata"] = {
            "name": "digits",
            "namespace": NAMESPACE,
            "annotations": {MODE: "Knative"},
        }
        cluster.api.create(INFERENCE_SERVICE, made)
        url = (await until_ready(cluster))["status"]["url"]
        async with loaded(url) as load:
            change(
                cluster,
                lambda spec: spec["predictor"]["model"].update(storageUri="pvc://models/none"),
            )
            found = await until(cluster, lambda obj: condition(obj, "Ready")["status"] == "False")
            assert "Container failed with" in condition(found, "Ready")["message"]
            assert shares(found) == {"1": 100}
        assert load.failed == []
        assert set(load.answers) == {"digits first"}

    on_kserve(story, definitions=[DEFINITION])
