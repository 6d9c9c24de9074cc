"""Deploying against a real API server, with KServe played by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.api_errors import Refused
from kfp_pytorch.launcher.constants import (
    CLAIM,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    SPEC_HASH_LABEL,
)
from kfp_pytorch.launcher.deploy import DeployFailed, Pace
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.inference_service import parse_inputs
from kfp_pytorch.launcher.kube import Kube
from kfp_pytorch.launcher.steps.kserve_deploy import Outputs, deploy
from kfp_pytorch.local.apiserver.errors import denied
from kfp_pytorch.local.apiserver.serve import ThreadedServer, start_in_thread
from kfp_pytorch.local.controllers.inferenceservice import check

NAMESPACE = "default"
NAME = "digits"
URL = "http://digits.default.example.com"
QUICK = Pace(
    poll=0.02,
    slow_poll=0.02,
    settle=0.01,
    url_grace=0.1,
    refusal_grace=0.1,
    deletion=5.0,
)

Object = dict[str, Any]


class KServe:
    """Plays KServe's controller, one act at a time."""

    def __init__(self, server: ThreadedServer) -> None:
        self.server = server

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
        name = f"{NAME}-predictor"
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
        self._mutate(POD, name, lambda obj: obj.update(status=status), "status")
        return made

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

    def log(self, pod: Object, container: str, text: str) -> None:
        metadata = pod["metadata"]
        folder = f"{NAMESPACE}_{metadata['name']}_{metadata['uid']}"
        path = self.server.log_root / folder / container / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"2025-11-27T12:00:00.0Z stdout F {line}\n" for line in text.splitlines()]
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
    """One try of the step, in a thread of its own."""

    def __init__(self, kube: Kube, pace: Pace, metadata: Object, inputs: Object) -> None:
        place = {"storage_uri": "pvc://kfp-pytorch/export", "format": "kfp-pytorch", **metadata}
        self._inputs = parse_inputs(
            "minio://b/m", place, **{"service_name": NAME, "timeout": 8} | inputs
        )
        self._kube, self._pace = kube, pace
        self.outputs: Outputs | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outputs = deploy(self._kube, self._inputs, self._pace)
        except BaseException as error:
            self.error = error

    def going(self, within: float = 0.15) -> bool:
        """Whether it still goes on after a while in which it looked many times."""
        self._thread.join(within)
        return self._thread.is_alive()

    def succeeded(self) -> Outputs:
        assert not self.going(10)
        if self.error is not None:
            raise self.error
        assert self.outputs is not None
        return self.outputs

    def failed(self, kind: type[StepError] = DeployFailed) -> str:
        assert not self.going(10)
        assert isinstance(self.error, kind), f"{self.error!r} {self.outputs}"
        return self.error.message


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadedServer]:
    """A server of the test's own: some add webhooks, which nothing takes away."""
    started = start_in_thread(tmp_path)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "kfp-pytorch", "namespace": NAMESPACE}, "spec": spec}
    started.call(started.api.create, CLAIM, claim)
    yield started
    started.stop()


@pytest.fixture
def kserve(server: ThreadedServer) -> KServe:
    return KServe(server)


@pytest.fixture
def start(kube: Kube) -> Iterator[Callable[..., Step]]:
    steps: list[Step] = []

    def new(pace: Pace = QUICK, metadata: Object | None = None, **inputs: Any) -> Step:
        steps.append(Step(kube, pace, metadata or {}, inputs))
        return steps[-1]

    yield new
    for step in steps:
        assert not step.going(20), "a step was left behind"


Start = Callable[..., Step]
Until = Callable[..., Any]


@pytest.fixture
def until(hands: Any) -> Until:
    return hands.until  # type: ignore[no-any-return]


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

    def new(pace: Pace = QUICK, **inputs: Any) -> Step:
        step = start(pace, {"sha256": "2"}, **inputs)
        before = deployed["metadata"]["generation"]
        until(lambda: (kserve.service() or {})["metadata"]["generation"] != before)
        return step

    return new


def test_a_new_service_is_created_and_its_exact_url_returned(
    kserve: KServe, start: Start, until: Until, check_crd: Callable[[str, Object], None]
) -> None:
    step = start()
    created = until(kserve.service)
    check_crd("inferenceservices", {k: v for k, v in created.items() if k != "status"})
    kserve.serves()
    outputs = step.succeeded()
    assert outputs.url == f"{URL}/v1/models/digits:predict"
    assert outputs.cluster_url == "http://digits-predictor.default/v1/models/digits:predict"
    assert outputs.service_name == NAME
    assert outputs.revision == created["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]


def test_a_status_that_comes_piece_by_piece_is_waited_for(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(replace(QUICK, url_grace=10.0))
    until(kserve.service)
    assert step.going(), "there is no status"
    kserve.says()
    kserve.rolls_out()
    assert step.going(), "there are no conditions"
    kserve.says("False", url=URL)
    assert step.going(), "it is not ready"
    kserve.says("True", url="")
    assert step.going(), "there is no URL"
    kserve.says("True", url=URL)
    assert step.succeeded().url.startswith(URL)


def test_ready_without_a_url_gives_the_address_after_a_while(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start()
    until(kserve.service)
    kserve.rolls_out()
    kserve.says("True", address={"url": "http://in.the.cluster"})
    outputs = step.succeeded()
    assert outputs.url == outputs.cluster_url == "http://in.the.cluster/v1/models/digits:predict"


def test_ready_without_any_url_fails_and_says_so(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start()
    until(kserve.service)
    kserve.rolls_out()
    kserve.says("True")
    assert "its status has no URL" in step.failed()


def test_the_old_revisions_ready_does_not_count_for_the_new_one(
    kserve: KServe, deployed: Object, update: Callable[..., Step]
) -> None:
    step = update()
    assert step.going(), "Ready is the old revision's"
    kserve.rolls_out(new=1, total=2, available=1)
    assert step.going(), "the old pod is what is available"
    kserve.rolls_out(new=1, total=2, available=2)
    assert step.going(), "the old pod still gets requests"
    kserve.rolls_out()
    before = deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert step.succeeded().revision != before


def test_one_look_at_a_flickering_service_is_not_enough(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(replace(QUICK, in_a_row=5, settle=0.05))
    until(kserve.service)
    kserve.rolls_out()
    for _ in range(4):
        kserve.says("True", url=URL)
        assert step.going(0.06)
        kserve.says("Unknown", url=URL)
        assert step.going(0.06)
    kserve.says("True", url=URL)
    step.succeeded()


def test_the_same_spec_again_writes_nothing(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    start().succeeded()
    again = kserve.service()
    assert again is not None
    assert again["metadata"]["generation"] == deployed["metadata"]["generation"]


def test_what_was_changed_by_hand_is_set_right(
    kserve: KServe, start: Start, deployed: Object
) -> None:
    def change(obj: Object) -> None:
        obj["spec"]["predictor"]["model"]["storageUri"] = "s3://somewhere/else"

    kserve._mutate(INFERENCE_SERVICE, NAME, change)
    start().succeeded()
    now = kserve.service()
    assert now is not None
    assert now["spec"]["predictor"]["model"]["storageUri"] == "pvc://kfp-pytorch/export"


def test_an_update_that_collides_with_the_controller_is_made_again(
    kserve: KServe, update: Callable[..., Step], server: ThreadedServer
) -> None:
    collisions = 2

    def collide(_: Object) -> None:
        nonlocal collisions
        if collisions:
            collisions -= 1
            raise server_conflict()

    server.call(server.api.add_webhook, INFERENCE_SERVICE, collide)
    step = update()
    assert collisions == 0
    kserve.rolls_out()
    step.succeeded()


def server_conflict() -> Exception:
    from kfp_pytorch.local.apiserver.errors import conflict

    return conflict(INFERENCE_SERVICE, NAME)


def test_a_webhooks_refusal_ends_the_step_at_once_with_its_words(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    server.call(server.api.add_webhook, INFERENCE_SERVICE, check)
    message = start(deployment_mode="Knative").failed(Refused)
    assert "deploymentMode cannot be changed from 'Standard' to 'Knative'" in message
    assert kserve.service() is not None


def test_a_refused_creation_leaves_nothing(start: Start, server: ThreadedServer) -> None:
    def refuse(_: Object) -> None:
        raise denied("policy.example.com", "models need an owner label")

    server.call(server.api.add_webhook, INFERENCE_SERVICE, refuse)
    assert "models need an owner label" in start().failed(Refused)


def test_a_service_that_goes_is_waited_for_and_made_anew(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer, until: Until
) -> None:
    kserve._mutate(
        INFERENCE_SERVICE, NAME, lambda obj: obj["metadata"].update(finalizers=["example.com/hold"])
    )
    server.call(server.api.delete, INFERENCE_SERVICE, NAMESPACE, NAME)
    step = start()
    assert step.going(), "the old service still is there"
    kserve._mutate(INFERENCE_SERVICE, NAME, lambda obj: obj["metadata"].update(finalizers=[]))

    def renewed() -> bool:
        found = kserve.service()
        return bool(found) and found["metadata"]["uid"] != deployed["metadata"]["uid"]  # type: ignore[index]

    until(renewed)
    kserve.serves()
    step.succeeded()


def test_a_service_that_does_not_go_is_said_to_be_held(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    kserve._mutate(
        INFERENCE_SERVICE, NAME, lambda obj: obj["metadata"].update(finalizers=["example.com/hold"])
    )
    server.call(server.api.delete, INFERENCE_SERVICE, NAMESPACE, NAME)
    assert "example.com/hold" in start(replace(QUICK, deletion=0.2)).failed()


def test_a_service_deleted_while_it_is_waited_for_fails_the_step(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until
) -> None:
    step = start()
    until(kserve.service)
    server.call(server.api.delete, INFERENCE_SERVICE, NAMESPACE, NAME)
    assert "was deleted meanwhile" in step.failed()


def crashed(name: str, message: str, restarts: int = 2) -> Object:
    end = {"exitCode": 1, "reason": "Error", "message": message, "startedAt": None}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    return {
        "name": name,
        "image": "i:1",
        "imageID": "",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": waiting},
        "lastState": {"terminated": end},
    }


def test_a_download_that_keeps_failing_ends_the_step_with_the_initializers_log(
    kserve: KServe, update: Callable[..., Step]
) -> None:
    step = update()
    carried = kserve.rolls_out(new=1, total=2, available=1)
    status = crashed("storage-initializer", "Failed to fetch model.")
    pod = kserve.pod(carried, phase="Pending", initContainerStatuses=[status])
    kserve.log(pod, "storage-initializer", "Copying s3://b/m\nNo model found in s3://b/m")
    message = step.failed()
    assert "'storage-initializer' of the new revision keeps crashing" in message.splitlines()[0]
    assert "The previous revision still serves." in message
    assert "No model found in s3://b/m" in message


def test_crashes_of_the_old_revision_do_not_fail_the_new_one(
    kserve: KServe, update: Callable[..., Step]
) -> None:
    status = crashed("kserve-container", "out of memory")
    kserve.pod("another hash", phase="Running", containerStatuses=[status])
    step = update()
    assert step.going()
    kserve.rolls_out()
    step.succeeded()


def test_a_first_crash_may_be_followed_by_a_success(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start()
    until(kserve.service)
    carried = kserve.rolls_out(available=0)
    status = crashed("storage-initializer", "connection reset", restarts=1)
    status["state"] = {"running": {"startedAt": "2025-11-27T12:00:00Z"}}
    kserve.pod(carried, phase="Pending", initContainerStatuses=[status])
    assert step.going()
    kserve.serves()
    step.succeeded()


def test_a_time_out_names_what_is_missing_with_the_pods_events(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(timeout=1)
    until(kserve.service)
    carried = kserve.rolls_out(available=0)
    kserve.pod(carried, phase="Pending")
    words = 'Multi-Attach error for volume "pvc-1": Volume is already used by pod(s) train-master-0'
    kserve.event("FailedAttachVolume", words)
    message = step.failed()
    assert "after 1 s (timeout) it still waits for pods of the new revision" in message
    assert "Nothing serves." in message
    assert words in message


def test_a_spec_that_kserve_cannot_serve_fails_soon_in_its_words(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(model_format="", runtime="gone")
    until(kserve.service)
    info = {"reason": "RuntimeNotRecognized", "message": "Waiting for runtime to become available"}
    model = {"transitionStatus": "InvalidSpec", "lastFailureInfo": info}
    kserve.says("False", modelStatus=model)
    message = step.failed()
    assert "RuntimeNotRecognized: Waiting for runtime to become available" in message


def test_a_refusal_of_the_last_spec_is_outwaited(
    kserve: KServe, update: Callable[..., Step]
) -> None:
    model = {"transitionStatus": "InvalidSpec", "lastFailureInfo": {"reason": "RuntimeDisabled"}}
    kserve.says("False", modelStatus=model)
    step = update(replace(QUICK, refusal_grace=5.0))
    assert step.going()
    kserve.rolls_out()
    kserve.says("True", url=URL, modelStatus={"transitionStatus": "UpToDate"})
    step.succeeded()


def test_a_canary_of_a_standard_service_is_refused_before_anything_is_written(
    kserve: KServe, start: Start, deployed: Object
) -> None:
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=10)
    assert "service 'digits' is in Standard mode" in step.failed(InputError)
    now = kserve.service()
    assert now is not None
    assert now["metadata"]["generation"] == deployed["metadata"]["generation"]


def test_a_model_on_a_claim_that_is_not_there_is_refused(kserve: KServe, start: Start) -> None:
    step = start(metadata={"storage_uri": "pvc://elsewhere/export"})
    assert "has no PersistentVolumeClaim 'elsewhere'" in step.failed(InputError)
    assert kserve.service() is None


def test_a_host_too_long_is_refused_before_anything_is_written(
    kserve: KServe, start: Start
) -> None:
    assert "a service's name may have" in start(service_name="a" * 60).failed(InputError)


def test_no_request_deletes_a_service(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    start(metadata={"sha256": "2"}, timeout=1).failed()
    assert kserve.service() is not None
    assert not [r for r in server.requests if r.verb == "delete"]
