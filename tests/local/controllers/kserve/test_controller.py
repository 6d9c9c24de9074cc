"""KServe's stand-in: what becomes of an InferenceService, and when it counts as ready."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from kfp_pytorch.launcher.constants import (
    CLAIM,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    SERVICE,
    SERVING_RUNTIME,
)
from kfp_pytorch.local import storage_initializer
from kfp_pytorch.local.apiserver.store.api import ApiError
from kfp_pytorch.local.controllers.kserve import controller
from kfp_pytorch.local.controllers.kserve.controller import KServe, Seen
from kfp_pytorch.local.controllers.kserve.predictor import Refusal
from kfp_pytorch.local.controllers.kubernetes.deployment import DeploymentController

ROOT = Path(__file__).resolve().parents[4]
NAMESPACE = "default"
NOW = datetime(2025, 11, 27, 12, 0, tzinfo=UTC)

Object = dict[str, Any]

# A model server: answers with what lies in the model's folder, once it has started.
SERVER = """
import argparse, pathlib, http.server, signal, threading
p = argparse.ArgumentParser()
for name in ("model_name", "model_dir", "http_port"):
    p.add_argument(f"--{name}")
a = p.parse_args()
text = (pathlib.Path(a.model_dir) / "weights").read_text()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{a.model_name} {text}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(a.http_port)), Handler)
server.daemon_threads = False  # what is in flight is answered
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever(0.05)
server.server_close()
"""


def quick_runtime() -> Object:
    made = dict(yaml.safe_load((ROOT / "manifests" / "serving-runtime.yaml").read_text()))
    made["metadata"]["namespace"] = NAMESPACE
    container = made["spec"]["containers"][0]
    container["command"] = ["python", "-c", SERVER]
    container["readinessProbe"] = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    container.pop("livenessProbe")
    container["resources"] = {}
    return made


def service(uri: str = "pvc://models/digits/export", **predictor: Any) -> Object:
    model = {"modelFormat": {"name": "kfp-pytorch"}, "storageUri": uri}
    model |= predictor.pop("model", {})
    metadata = {"name": "digits", "namespace": NAMESPACE, "uid": "u-1"}
    return {"metadata": metadata, "spec": {"predictor": {"model": model, **predictor}}}


# Its status


def deployed(available: str = "True", progressing: str = "True", reason: str = "") -> Object:
    conditions = [
        {"type": "Available", "status": available, "reason": "A", "message": "a"},
        {
            "type": "Progressing",
            "status": progressing,
            "reason": reason or "NewReplicaSetAvailable",
            "message": "p",
        },
    ]
    return {"status": {"observedGeneration": 3, "conditions": conditions}}


def pod(name: str = "p", up: bool = True, **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": str(up)}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions, **status}}


def condition(status: Object, type_: str) -> str:
    return next(str(c["status"]) for c in status["conditions"] if c["type"] == type_)


def test_a_ready_deployment_makes_the_service_ready_with_its_url(
    check_crd: Callable[[str, Object], None],
) -> None:
    seen = Seen(deployed(), (pod(),), "http://127.0.0.1:1", "kfp-pytorch")
    status = controller.status(service(), seen, NOW)
    assert [condition(status, t) for t in ("PredictorReady", "IngressReady", "Ready")] == [
        "True"
    ] * 3
    assert status["url"] == status["address"]["url"] == "http://127.0.0.1:1"
    assert status["modelStatus"]["transitionStatus"] == "UpToDate"
    whole = {**service(), "status": status, "apiVersion": "serving.kserve.io/v1beta1"}
    check_crd("inferenceservices", whole | {"kind": "InferenceService"})


def test_there_is_no_url_before_the_first_pod_is_ready() -> None:
    seen = Seen(deployed("False", reason="ReplicaSetUpdated"), (pod(up=False),), "http://h:1")
    status = controller.status(service(), seen, NOW)
    assert "url" not in status
    assert condition(status, "Ready") == "False"
    assert status["modelStatus"]["transitionStatus"] == "InProgress"


def test_an_update_keeps_ready_while_the_old_pod_serves() -> None:
    before = service()
    before["status"] = controller.status(before, Seen(deployed(), (pod(),), "http://h:1"), NOW)
    ends = {"exitCode": 1, "message": "no model.json"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    crashing = {"name": "storage-initializer", "state": waiting, "lastState": {"terminated": ends}}
    seen = Seen(
        deployed(reason="ReplicaSetUpdated"),
        (pod("new", up=False, initContainerStatuses=[crashing]), pod("old")),
        "http://h:1",
    )
    status = controller.status(before, seen, NOW)
    assert condition(status, "Ready") == "True"
    assert status["modelStatus"]["transitionStatus"] == "BlockedByFailedLoad"
    assert status["modelStatus"]["lastFailureInfo"]["message"] == "no model.json"
    assert status["modelStatus"]["states"] == {
        "activeModelState": "Loaded",
        "targetModelState": "FailedToLoad",
    }


def test_a_refusal_is_said_in_the_model_status() -> None:
    seen = Seen(refusal=Refusal("NoSupportingRuntime", "No runtime found"))
    status = controller.status(service(), seen, NOW)
    assert status["modelStatus"]["transitionStatus"] == "InvalidSpec"
    assert condition(status, "Ready") == "False"


# All of it, with processes

Story = Callable[[Any], Awaitable[None]]


@pytest.fixture
def on_kserve(on_controllers: Callable[[Story], None]) -> Callable[[Story], None]:
    """Runs a story on a cluster with KServe, our runtime's name and a server that starts fast."""

    def run(story: Story) -> None:
        async def with_kserve(cluster: Any) -> None:
            cluster.api.create(SERVING_RUNTIME, quick_runtime())
            controllers = [
                asyncio.create_task(DeploymentController(cluster.api).run()),
                asyncio.create_task(KServe(cluster.api, cluster.ports).run()),
            ]
            try:
                await story(cluster)
            finally:
                for each in controllers:
                    each.cancel()
                await asyncio.gather(*controllers, return_exceptions=True)

        on_controllers(with_kserve)

    return run


def put_model(cluster: Any, path: str, text: str) -> str:
    """Puts a model on the claim `models`; returns its URI."""
    if cluster.api.find(CLAIM, NAMESPACE, "models") is None:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        meta = {"name": "models", "namespace": NAMESPACE}
        cluster.api.create(CLAIM, {"metadata": meta, "spec": spec})
    folder = cluster.root / "claims" / NAMESPACE / "models" / path
    folder.mkdir(parents=True)
    (folder / "weights").write_text(text)
    return f"pvc://models/{path}"


def create(cluster: Any, uri: str, **predictor: Any) -> None:
    made = service(uri, **predictor)
    del made["metadata"]["uid"]
    cluster.api.create(INFERENCE_SERVICE, made)


async def until_ready(cluster: Any) -> Object:
    def holds(obj: Object) -> bool:
        return (obj.get("status") or {}).get("url") and condition(obj["status"], "Ready") == "True"

    found: Object = await cluster.until(INFERENCE_SERVICE, "digits", holds)
    return found


async def get(url: str) -> str:
    answer = await asyncio.to_thread(urllib3.request, "GET", url, retries=False)
    return f"{answer.status} {answer.data.decode()}"


def test_a_service_gets_an_address_that_stays_through_an_update_and_goes_with_it(
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
                # A request that is under way to the pod that leaves may be cut, as on a cluster.
                with contextlib.suppress(urllib3.exceptions.ProtocolError):
                    seen.append(await get(url))
        assert set(seen) == {"200 digits first", "200 digits second"}, "it was away for a moment"
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


def test_a_model_that_is_not_there_leaves_the_old_one_serving(
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
        # As in KServe, neither Ready nor the model's status tells that the new one fails.
        now = cluster.api.get(INFERENCE_SERVICE, NAMESPACE, "digits")["status"]
        assert (condition(now, "Ready"), now["modelStatus"]["transitionStatus"]) == (
            "True",
            "UpToDate",
        )
        assert await get(url) == "200 digits first"

    on_kserve(story)


def test_a_download_that_finds_nothing_is_told_in_the_initializers_words(
    on_kserve: Callable[[Story], None],
) -> None:
    async def story(cluster: Any) -> None:
        create(cluster, "ftp://models/digits")

        def failed(obj: Object) -> bool:
            return "lastFailureInfo" in (obj.get("status") or {}).get("modelStatus", {})

        found = await cluster.until(INFERENCE_SERVICE, "digits", failed)
        words = found["status"]["modelStatus"]["lastFailureInfo"]["message"]
        assert "Cannot recognize storage type for ftp://models/digits" in words

    on_kserve(story)


def test_a_runtime_that_comes_later_is_taken_up(on_kserve: Callable[[Story], None]) -> None:
    async def story(cluster: Any) -> None:
        cluster.api.delete(SERVING_RUNTIME, NAMESPACE, "kfp-pytorch")
        create(cluster, put_model(cluster, "one", "first"))

        def refused(obj: Object) -> bool:
            status = (obj.get("status") or {}).get("modelStatus", {})
            return status.get("transitionStatus") == "InvalidSpec"

        await cluster.until(INFERENCE_SERVICE, "digits", refused)
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


# The storage initializer


def test_files_are_downloaded_by_their_paths_under_the_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "bucket" / "model"
    (source / "deep").mkdir(parents=True)
    (source / "model.json").write_text("{}")
    (source / "deep" / "w").write_text("w")
    monkeypatch.setattr(storage_initializer, "SCHEMES", ("file",))
    count = storage_initializer.download(f"file://{source}", tmp_path / "to")
    assert count == 2
    assert (tmp_path / "to" / "deep" / "w").read_text() == "w"
    with pytest.raises(storage_initializer.DownloadError, match="No model found in"):
        storage_initializer.download(f"file://{tmp_path}/none", tmp_path / "to")


def test_the_credentials_of_storage_config_reach_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"access_key_id": "k", "secret_access_key": "s", "endpoint_url": "http://h:1"}
    monkeypatch.setenv("STORAGE_CONFIG", json.dumps(config))
    options = storage_initializer._options()
    assert (options["key"], options["endpoint_url"]) == ("k", "http://h:1")
    monkeypatch.setenv("STORAGE_CONFIG", "")
    assert storage_initializer._options() == {}
