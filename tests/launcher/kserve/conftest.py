"""A real API server, and hands to play KServe with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import ThreadedServer, start_in_thread
from harness.hands import until as until_so
from harness.held import Clock, unanswered

from kfp_pytorch.launcher.constants import (
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    SPEC_HASH_LABEL,
)
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kserve.deploy import DeployFailed, Timing
from kfp_pytorch.launcher.kserve.manifest import parse_inputs
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.kserve_deploy import Outputs, deploy, outputs
from kfp_pytorch.local.apiserver.store.api import Api

NAMESPACE = "default"
NAME = "digits"
URL = "http://digits.default.example.com"
QUICK = Timing(
    poll_interval=0.02,
    slow_poll_interval=0.02,
    confirm_interval=0.01,
    url_grace=0.1,
    refusal_grace=0.1,
    deletion_timeout=5.0,
)

Object = dict[str, Any]


class KServe:
    """Plays KServe's controller, one act at a time.

    Attributes:
        deployment: The name of what runs the service.
    """

    def __init__(self, server: ThreadedServer) -> None:
        self.server = server
        self.deployment = f"{NAME}-predictor"

    def service(self) -> Object | None:
        return self._find(INFERENCE_SERVICE, NAME)

    def _find(self, kind: Any, name: str) -> Object | None:
        return self.server.call(self.server.api.find, kind, NAMESPACE, name)

    def says(self, ready: str = "", **status: Any) -> None:
        """Writes the service's status."""

        def change(obj: Object) -> None:
            if ready:
                status["conditions"] = [{"type": "Ready", "status": ready, "reason": "Because"}]
            obj["status"] = {**(obj.get("status") or {}), "deploymentMode": "Standard", **status}

        self._mutate(INFERENCE_SERVICE, NAME, change, "status")

    def rolls_out(self, new: int = 1, total: int = 1, available: int = 1) -> str:
        """Brings the Deployment to the service's spec, with so many pods; returns the hash."""
        predictor = self.service()["spec"]["predictor"]  # type: ignore[index]
        carried = predictor["annotations"][SPEC_HASH_LABEL]
        name = self.deployment
        if self._find(DEPLOYMENT, name) is None:
            self._create(DEPLOYMENT, _deployment(name))

        def carry(obj: Object) -> None:
            obj["spec"]["template"]["metadata"]["annotations"] = {SPEC_HASH_LABEL: carried}

        def count(obj: Object) -> None:
            obj["status"] = {
                "observedGeneration": obj["metadata"]["generation"],
                "replicas": total,
                "updatedReplicas": new,
                "availableReplicas": available,
            }

        self._mutate(DEPLOYMENT, name, carry)
        self._mutate(DEPLOYMENT, name, count, "status")
        return str(carried)

    def serves(self) -> None:
        """A whole rollout."""
        self.rolls_out()
        self.says("True", url=URL, address={"url": "http://digits-predictor.default"})

    def pod(self, carried: str, **status: Any) -> Object:
        name = f"{NAME}-predictor-1"
        metadata = {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"serving.kserve.io/inferenceservice": NAME},
            "annotations": {SPEC_HASH_LABEL: carried},
        }
        containers = {
            "initContainers": [{"name": "storage-initializer", "image": "i:1"}],
            "containers": [{"name": "kserve-container", "image": "c:1"}],
        }
        made = self._create(POD, {"metadata": metadata, "spec": {"nodeName": "n", **containers}})
        self.pod_says(**status)
        return made

    def pod_says(self, **status: Any) -> None:
        name = f"{NAME}-predictor-1"
        self._mutate(POD, name, lambda obj: obj.update(status=status), "status")

    def event(self, reason: str, message: str) -> None:
        name = f"{NAME}-predictor-1"
        event = {
            "metadata": {"name": f"{name}.1", "namespace": NAMESPACE},
            "involvedObject": {"name": name, "namespace": NAMESPACE},
            "type": "Warning",
            "reason": reason,
            "message": message,
        }
        self._create(EVENT, event)

    def rejects_the_mode(self, uid: str = "") -> None:
        """KServe's only answer where its default mode needs Knative, which is not there.

        `uid`: the service's; empty for that of the one that is there.
        """
        words = "It is not possible to use Serverless deployment mode when Knative Services are not"
        about = {"kind": "InferenceService", "name": NAME, "namespace": NAMESPACE}
        about["uid"] = uid or (self.service() or {})["metadata"]["uid"]
        event = {
            "metadata": {"name": f"{NAME}.1", "namespace": NAMESPACE},
            "involvedObject": about,
            "type": "Warning",
            "reason": "ServerlessModeRejected",
            "message": f"{words} available",
        }
        self._create(EVENT, event)

    def log(self, pod: Object, container: str, text: str) -> None:
        metadata = pod["metadata"]
        folder = f"{NAMESPACE}_{metadata['name']}_{metadata['uid']}"
        path = self.server.log_root / folder / container / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"2025-11-27T12:00:00.0Z stdout F {line}\n"
            for line in text.removesuffix("\n").split("\n")
        ]
        path.write_text("".join(lines))

    def _create(self, kind: Any, obj: Object) -> Object:
        return self.server.call(self.server.api.create, kind, obj)

    def _mutate(
        self, kind: Any, name: str, change: Callable[[Object], None], sub: str = ""
    ) -> None:
        self.server.call(self.server.api.mutate, kind, NAMESPACE, name, change, sub)


def _deployment(name: str) -> Object:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "kserve-container", "image": "c:1"}]},
    }
    selector = {"matchLabels": {"app": name}}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": 1, "selector": selector, "template": template},
    }


class Step:
    """One attempt of the step, in a thread of its own."""

    def __init__(
        self, server: ThreadedServer, kube: Kube, timing: Timing, metadata: Object, inputs: Object
    ) -> None:
        place = {"storage_uri": "pvc://kfp-pytorch/export", "format": "kfp-pytorch", **metadata}
        artifact = (None, {}) if inputs.get("storage_uri") else ("minio://b/m", place)
        self._inputs = parse_inputs(*artifact, **{"service_name": NAME, "timeout": 60} | inputs)
        self._server, self._kube, self._timing = server, kube, timing
        self.outputs: Outputs | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            served = deploy(self._kube, self._inputs, self._timing, Stopper())
            self.outputs = outputs(served, self._inputs)
        except BaseException as error:
            self.error = error

    def going(self, within: float = 0.15) -> bool:
        """Whether it still goes on after a while in which it looked many times."""
        self._thread.join(within)
        return self._thread.is_alive()

    def goes_on(self, looks: int = 4) -> bool:
        """Whether it still goes on after some more looks; one may have been under way."""
        before = self._looks()
        until_so(lambda: not self.going(0) or self._looks() >= before + looks)
        return self.going(0)

    def _looks(self) -> int:
        requests = self._server.requests
        return sum(r.verb == "get" and "/inferenceservices/" in r.path for r in requests)

    def succeeded(self) -> Outputs:
        assert not self.going(60)
        if self.error is not None:
            raise self.error
        assert self.outputs is not None
        return self.outputs

    def failed(self, kind: type[StepError] = DeployFailed) -> str:
        assert not self.going(60)
        assert isinstance(self.error, kind), f"{self.error!r} {self.outputs}"
        return self.error.message


@pytest.fixture
def api() -> Api:
    """What the server serves."""
    return Api()


@pytest.fixture
def server(tmp_path: Path, api: Api) -> Iterator[ThreadedServer]:
    """A server of the test's own: some add webhooks, which nothing takes away."""
    started = start_in_thread(tmp_path, api=api)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "kfp-pytorch", "namespace": NAMESPACE}, "spec": spec}
    started.call(started.api.create, CLAIM, claim)
    yield started
    started.stop()


@pytest.fixture
def quick() -> Timing:
    """The usual timing, scaled down so that a test sees its end."""
    return QUICK


@pytest.fixture
def kserve(server: ThreadedServer) -> KServe:
    return KServe(server)


@pytest.fixture
def start(server: ThreadedServer, kube: Kube) -> Iterator[Callable[..., Step]]:
    steps: list[Step] = []

    def new(
        timing: Timing = QUICK,
        metadata: Object | None = None,
        on: Kube | None = None,
        **inputs: Any,
    ) -> Step:
        steps.append(Step(server, on or kube, timing, metadata or {}, inputs))
        return steps[-1]

    yield new
    for step in steps:
        assert not step.going(60), "a step was left behind"


Start = Callable[..., Step]
Until = Callable[..., Any]


@pytest.fixture
def until(hands: Any) -> Until:
    return hands.until  # type: ignore[no-any-return]


@pytest.fixture
def unnoticed(server: ThreadedServer) -> Callable[[], AbstractContextManager[None]]:
    """`with unnoticed():` a step does not learn that its service is written: no limit runs yet."""

    @contextmanager
    def writes() -> Iterator[None]:
        services = "*/inferenceservices*"
        with unanswered(server, "create", services), unanswered(server, "update", services):
            yield

    return writes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that a step counts its limits by."""
    return Clock().install(monkeypatch, "kserve.wait", "runtime.printing")


@pytest.fixture
def deployed(kserve: KServe, start: Start, until: Until) -> Object:
    """A service that serves its first revision."""
    step = start()
    until(kserve.service)
    kserve.serves()
    step.succeeded()
    return dict(kserve.service() or {})


@pytest.fixture
def update(kserve: KServe, start: Start, deployed: Object, until: Until) -> Callable[..., Step]:
    """Starts a step with new weights for the service, which has been written when it returns."""

    def new(timing: Timing = QUICK, **inputs: Any) -> Step:
        step = start(timing, {"sha256": "2"}, **inputs)
        before = deployed["metadata"]["generation"]
        until(lambda: (kserve.service() or {})["metadata"]["generation"] != before)
        return step

    return new
