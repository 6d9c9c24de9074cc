"""InferenceServices with processes: what they become, and when they are ready."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import urllib3
from harness.objects.inference import (
    NAMESPACE,
    SERVER,
    create,
    put_model,
    quick_runtime,
    service,
    until_ready,
)

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    SERVICE,
    SERVING_RUNTIME,
)
from kfp_pytorch.local.apiserver.store.api import ApiError
from kfp_pytorch.local.controllers.kubernetes.status import condition

Object = dict[str, Any]
Story = Callable[[Any], Awaitable[None]]


async def get(url: str) -> str:
    answer = await asyncio.to_thread(urllib3.request, "GET", url, retries=False)
    return f"{answer.status} {answer.data.decode()}"


def test_an_address_stays_through_an_update_until_the_service_is_deleted(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, put_model(cluster, "one", "first"))
        url = (await until_ready(cluster))["status"]["url"]
        assert await get(url) == "200 digits first"
        seen: list[str] = []
        uri = put_model(cluster, "two", "second")
        cluster.api.mutate(
            INFERENCE_SERVICE,
            NAMESPACE,
            "digits",
            lambda obj: obj["spec"]["predictor"]["model"].update(storageUri=uri),
        )
        async with asyncio.timeout(120):
            while not seen or "second" not in seen[-1]:
                seen.append(await get(url))
        assert set(seen) == {"200 digits first", "200 digits second"}, (
            "requests failed during the update"
        )
        await cluster.until(
            DEPLOYMENT, "digits-predictor", lambda d: d["status"].get("replicas") == 1
        )
        assert (await until_ready(cluster))["status"]["url"] == url
        cluster.api.delete(INFERENCE_SERVICE, NAMESPACE, "digits")
        for kind in (DEPLOYMENT, SERVICE, POD):
            async with asyncio.timeout(120):
                while cluster.api.list(kind, NAMESPACE):
                    await asyncio.sleep(0.02)
        with pytest.raises(urllib3.exceptions.HTTPError):
            await get(url)

    on_kserve(story)


def test_a_missing_model_leaves_the_old_one_serving(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, put_model(cluster, "one", "first"))
        url = (await until_ready(cluster))["status"]["url"]
        cluster.api.mutate(
            INFERENCE_SERVICE,
            NAMESPACE,
            "digits",
            lambda obj: obj["spec"]["predictor"]["model"].update(storageUri="pvc://models/none"),
        )

        def crashed(obj: Object) -> bool:
            statuses = (obj.get("status") or {}).get("containerStatuses") or [{}]
            ends = [statuses[0].get(part, {}) for part in ("state", "lastState")]
            return any("weights" in e.get("terminated", {}).get("message", "") for e in ends)

        async with asyncio.timeout(120):
            while not any(map(crashed, cluster.api.list(POD, NAMESPACE))):
                await asyncio.sleep(0.05)
        # As in KServe 0.19: the serving container's end starts no reconciliation, so that neither
        # Ready nor the model's status reports it.
        now = cluster.api.get(INFERENCE_SERVICE, NAMESPACE, "digits")
        assert condition(now, "Ready")["status"] == "Unknown"
        assert now["status"]["modelStatus"]["transitionStatus"] in ("UpToDate", "InProgress")
        assert await get(url) == "200 digits first"
        blocked = await write_until_blocked(cluster)
        good = put_model(cluster, "two", "second")
        cluster.api.mutate(
            INFERENCE_SERVICE,
            NAMESPACE,
            "digits",
            lambda obj: obj["spec"]["predictor"]["model"].update(storageUri=good),
        )
        served = await until_ready(cluster)
        # The failing pod, which is then terminated, may end once more.
        for found in (blocked, served):
            assert found["status"]["modelStatus"]["lastFailureInfo"]["reason"] == "ModelLoadFailed"
        assert served["status"]["modelStatus"]["transitionStatus"] == "UpToDate"

    on_kserve(story)


async def write_until_blocked(cluster: Any) -> Object:
    """Writes what is the autoscaler's until a write finds the container after its end."""
    async with asyncio.timeout(120):
        for count in itertools.count():
            found: Object = cluster.api.mutate(
                INFERENCE_SERVICE,
                NAMESPACE,
                "digits",
                lambda obj, n=count: obj["spec"]["predictor"].update(maxReplicas=n + 1),
            )
            if found["status"]["modelStatus"]["transitionStatus"] == "BlockedByFailedLoad":
                return found
            await asyncio.sleep(0.05)
    raise AssertionError("it was never blocked")


def test_a_new_service_has_its_address_before_its_first_pod_is_ready(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, put_model(cluster, "one", "first"))
        first = await cluster.until(INFERENCE_SERVICE, "digits", lambda obj: obj.get("status"))
        assert first["metadata"]["finalizers"] == ["inferenceservice.finalizers"]
        assert first["metadata"]["annotations"] == {
            "modelFormat": "kfp-pytorch",
            "serving.kserve.io/deploymentMode": "Standard",
        }
        listed = [(c["type"], c["status"], c.get("reason")) for c in first["status"]["conditions"]]
        assert listed == [
            ("IngressReady", "True", None),
            ("PredictorReady", "False", None),
            ("Ready", "False", None),
            ("Stopped", "False", None),
        ]
        assert first["status"]["url"].startswith("http://127.0.0.1:")
        assert "observedGeneration" not in first["status"]
        ready = await until_ready(cluster)
        assert ready["status"]["modelStatus"]["copies"]["totalCopies"] == 1
        event = await cluster.event("digits", "InferenceServiceReady")
        assert event["message"] == "InferenceService [digits] is Ready"

    on_kserve(story)


def test_more_replicas_come_from_the_autoscaler(on_kserve: Callable[[Story], None]) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, put_model(cluster, "one", "first"), minReplicas=2)
        made = await cluster.until(DEPLOYMENT, "digits-predictor", lambda _: True)
        assert made["spec"]["replicas"] == 1
        await cluster.until(
            DEPLOYMENT, "digits-predictor", lambda d: d["status"].get("availableReplicas") == 2
        )
        event = await cluster.event("digits-predictor", "SuccessfulRescale")
        assert event["message"].startswith("New size: 2;")

    on_kserve(story)


def test_knative_where_there_is_none_gets_no_status_and_no_event(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        await asyncio.sleep(0)
        made = service(put_model(cluster, "one", "first"))
        mode = {"serving.kserve.io/deploymentMode": "Knative"}
        made["metadata"] = {"name": "digits", "namespace": NAMESPACE, "annotations": mode}
        cluster.api.create(INFERENCE_SERVICE, made)
        await asyncio.sleep(0.5)
        found = cluster.api.get(INFERENCE_SERVICE, NAMESPACE, "digits")
        assert "status" not in found
        assert "finalizers" not in found["metadata"]
        assert not cluster.api.list(EVENT, NAMESPACE)
        assert not cluster.api.list(DEPLOYMENT, NAMESPACE)
        cluster.api.delete(INFERENCE_SERVICE, NAMESPACE, "digits")

    on_kserve(story)


def test_a_failed_download_is_reported_with_the_initializers_message(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, "ftp://models/digits")

        def failed(obj: Object) -> bool:
            return "lastFailureInfo" in (obj.get("status") or {}).get("modelStatus", {})

        found = await cluster.until(INFERENCE_SERVICE, "digits", failed)
        message = found["status"]["modelStatus"]["lastFailureInfo"]["message"]
        assert "Cannot recognize storage type for ftp://models/digits" in message

    on_kserve(story)


def test_a_container_of_ones_own_serves_a_model_without_a_runtime(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        cluster.api.delete(SERVING_RUNTIME, NAMESPACE, "kfp-pytorch")
        uri = put_model(cluster, "one", "first")
        container = {
            "name": "kserve-container",
            "image": "a:1",
            "command": ["sh", "-c"],
            "args": [
                f"exec python -c '{SERVER}' --model_name {{.Name}} --model_dir $STORAGE_URI "
                "--http_port 8080"
            ],
            "env": [{"name": "STORAGE_URI", "value": uri}],
        }
        made = service()
        del made["metadata"]["uid"]
        made["spec"]["predictor"] = {"containers": [container]}
        cluster.api.create(INFERENCE_SERVICE, made)
        url = (await until_ready(cluster))["status"]["url"]
        assert await get(url) == "200 {.Name} first"

    on_kserve(story)


def test_a_runtime_that_is_created_later_is_used(on_kserve: Callable[[Story], None]) -> None:
    async def story(cluster: Any) -> None:
        cluster.api.delete(SERVING_RUNTIME, NAMESPACE, "kfp-pytorch")
        create(cluster, put_model(cluster, "one", "first"))

        def refused(obj: Object) -> bool:
            status = (obj.get("status") or {}).get("modelStatus", {})
            return status.get("transitionStatus") == "InvalidSpec"

        found = await cluster.until(INFERENCE_SERVICE, "digits", refused)
        conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
        assert conditions == dict.fromkeys(("IngressReady", "PredictorReady", "Ready"), "Unknown")
        cluster.api.create(SERVING_RUNTIME, quick_runtime())
        await until_ready(cluster)

    on_kserve(story)


def test_the_webhook_refuses_a_name_and_a_change_of_mode(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        await asyncio.sleep(0)
        wrong = service()
        wrong["metadata"] = {"name": "2nd", "namespace": NAMESPACE}
        with pytest.raises(ApiError, match="must start with alphabetical"):
            cluster.api.create(INFERENCE_SERVICE, wrong)
        create(cluster, put_model(cluster, "one", "first"))
        await until_ready(cluster)
        mode = {"serving.kserve.io/deploymentMode": "Knative"}
        with pytest.raises(ApiError, match="deploymentMode cannot be changed"):
            cluster.api.mutate(
                INFERENCE_SERVICE,
                NAMESPACE,
                "digits",
                lambda obj: obj["metadata"].update(annotations=mode),
            )

    on_kserve(story)
