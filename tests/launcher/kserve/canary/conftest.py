"""Hands that play KServe's part for canaries, and the step that promotes or takes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.api_server import ThreadedServer

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.inputs.declaration import parse
from kfp_pytorch.launcher.kserve.canary.inputs import RolloutInputs
from kfp_pytorch.launcher.kserve.deploy import Timing
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.kserve_rollout import Outputs, roll
from kfp_pytorch.local.controllers.kserve import webhook

Object = dict[str, Any]
NAMESPACE, NAME = "default", "digits"
CANARY = f"{NAME}-canary-predictor"


class Canary:
    """Plays KServe 0.20 for the canary of a service in Standard mode."""

    def __init__(self, kserve: Any) -> None:
        self._kserve = kserve

    @property
    def entry(self) -> Object:
        """The canary in the spec; empty where there is none."""
        entries = (self._kserve.service() or {})["spec"].get("canary") or [{}]
        return dict(entries[0])

    @property
    def revision(self) -> str:
        return str(self.entry["predictor"]["annotations"][SPEC_HASH_LABEL])

    def comes(self, available: int = 1) -> None:
        """Makes its Deployment, with so many pods of it ready."""
        server, carried = self._kserve.server, self.revision
        if self._kserve._find(DEPLOYMENT, CANARY) is None:
            metadata = {"annotations": {SPEC_HASH_LABEL: carried}, "labels": {"app": CANARY}}
            template = {
                "metadata": metadata,
                "spec": {"containers": [{"name": "kserve-container", "image": "c:1"}]},
            }
            spec = {
                "replicas": 1,
                "selector": {"matchLabels": {"app": CANARY}},
                "template": template,
            }
            made = {"metadata": {"name": CANARY, "namespace": NAMESPACE}, "spec": spec}
            server.call(server.api.create, DEPLOYMENT, made)

        def count(obj: Object) -> None:
            obj["status"] = {
                "observedGeneration": obj["metadata"]["generation"],
                **dict.fromkeys(("replicas", "updatedReplicas"), 1),
                "availableReplicas": available,
            }

        server.call(server.api.mutate, DEPLOYMENT, NAMESPACE, CANARY, count, "status")
        status = {"name": "canary", "ready": bool(available), "trafficPercent": 0}
        self._kserve.says(canaryStatuses=[status])

    def goes(self) -> None:
        """Deletes what it made."""
        server = self._kserve.server
        if self._kserve._find(DEPLOYMENT, CANARY) is not None:
            server.call(server.api.delete, DEPLOYMENT, NAMESPACE, CANARY)
        self._kserve.says(canaryStatuses=[])


class Roll:
    """One attempt of `kserve_rollout`, in a thread of its own."""

    def __init__(self, kube: Kube, timing: Timing, inputs: Object) -> None:
        given = parse(RolloutInputs, "kserve_rollout", {"service_name": NAME, **inputs})
        self.outputs: Outputs | None = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.outputs = roll(kube, given, timing, Stopper())
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def going(self, within: float = 0.15) -> bool:
        self._thread.join(within)
        return self._thread.is_alive()

    def did(self) -> str:
        assert not self.going(60)
        if self.error is not None:
            raise self.error
        assert self.outputs is not None
        return self.outputs.outcome

    def failed(self, kind: type[StepError]) -> str:
        assert not self.going(60)
        assert isinstance(self.error, kind), f"{self.error!r} {self.outputs}"
        return self.error.message


@pytest.fixture
def canary(kserve: Any) -> Canary:
    return Canary(kserve)


@pytest.fixture
def server(server: ThreadedServer) -> ThreadedServer:
    """One whose webhook is KServe's."""
    server.call(server.api.add_webhook, INFERENCE_SERVICE, webhook.check)
    return server


@pytest.fixture
def rolls(kube: Kube, quick: Timing) -> Iterator[Callable[..., Roll]]:
    steps: list[Roll] = []

    def new(action: str, **inputs: Any) -> Roll:
        steps.append(Roll(kube, quick, {"action": action, "timeout": 60, **inputs}))
        return steps[-1]

    yield new
    for step in steps:
        assert not step.going(60), "a step was left behind"


@pytest.fixture
def beside(
    kserve: Any, canary: Canary, start: Callable[..., Any], deployed: Object, until: Any
) -> Any:
    """A canary that is ready, beside the service's first revision; what its step gave."""
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=0)
    until(lambda: canary.entry)
    canary.comes()
    return step.succeeded()
