"""Creating and changing a service, and when its new revision counts as serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness.faults.actions import Call
from harness.faults.plan import Fault
from harness.held import unanswered

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, SPEC_HASH_LABEL
from kfp_pytorch.launcher.kserve.deploy import Timing
from kfp_pytorch.launcher.kubernetes.api_errors import Refused
from kfp_pytorch.local.apiserver.errors import conflict, denied
from kfp_pytorch.local.apiserver.store.api import Api

NAMESPACE = "default"
NAME = "digits"
URL = "http://digits.default.example.com"

Object = dict[str, Any]
Start = Callable[..., Any]
Step = KServe = ThreadedServer = Clock = Any
Until = Callable[..., Any]


class Flickers:
    """The service is Ready whenever it is looked at, but for every fifth look at first."""

    TIMES = 4

    def __init__(self, api: Api) -> None:
        self.looks = 0
        self._api = api

    async def strike(self, call: Call) -> None:
        self.looks += 1
        ready = bool(self.looks % 5) or self.looks > self.TIMES * 5
        self._api.mutate(
            INFERENCE_SERVICE, NAMESPACE, NAME, lambda service: says(service, ready), "status"
        )
        await call.handle()


def says(service: Object, ready: bool) -> None:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Because"}
    service["status"] = {"url": URL, "deploymentMode": "Standard", "conditions": [condition]}


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


def test_a_service_that_only_pods_reach_is_said_to_be_that_with_the_way_to_it(
    kserve: KServe, start: Start, until: Until, capsys: pytest.CaptureFixture[str]
) -> None:
    """KServe's own URL is one of example.com where an administrator has set no domain."""
    step = start()
    until(kserve.service)
    kserve.serves()
    step.succeeded()
    printed = capsys.readouterr().out
    assert "cannot be reached from outside of the cluster" in printed
    lines = [line.strip() for line in printed.splitlines()]
    assert "`kubectl port-forward -n default service/digits-predictor 8080:80`" in lines
    assert "then http://localhost:8080/v1/models/digits:predict" in lines
    assert max(map(len, printed.splitlines())) <= 72


def test_two_replicas_are_waited_for_though_kserve_makes_one_first(
    kserve: KServe, start: Start, until: Until
) -> None:
    """Its HorizontalPodAutoscaler adds the other up to 15 s later."""
    step = start(min_replicas=2)
    until(kserve.service)
    kserve.serves()
    assert step.goes_on()
    kserve._mutate(DEPLOYMENT, kserve.deployment, lambda obj: obj["spec"].update(replicas=2))
    kserve.rolls_out(new=2, total=2, available=2)
    step.succeeded()


def test_a_service_of_an_older_kserve_keeps_the_name_of_its_deployment(
    kserve: KServe, start: Start, until: Until
) -> None:
    kserve.deployment = f"{NAME}-predictor-default"
    step = start()
    until(kserve.service)
    kserve.serves()
    assert step.succeeded().url.startswith(URL)


def test_a_status_that_comes_piece_by_piece_is_waited_for(
    quick: Timing, kserve: KServe, start: Start, until: Until
) -> None:
    step = start(replace(quick, url_grace=10.0))
    until(kserve.service)
    assert step.goes_on(), "there is no status"
    kserve.says()
    kserve.rolls_out()
    assert step.goes_on(), "there are no conditions"
    kserve.says("False", url=URL)
    assert step.goes_on(), "it is not ready"
    kserve.says("True", url="")
    assert step.goes_on(), "there is no URL"
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


@pytest.mark.parametrize("url", ["", "digits.default.example.com", "http://"])
def test_ready_without_any_url_fails_and_says_so(
    kserve: KServe, start: Start, until: Until, url: str
) -> None:
    step = start()
    until(kserve.service)
    kserve.rolls_out()
    kserve.says("True", url=url)
    assert "its status has no URL" in step.failed()


def test_the_old_revisions_ready_does_not_count_for_the_new_one(
    kserve: KServe, deployed: Object, update: Callable[..., Step]
) -> None:
    step = update()
    assert step.goes_on(), "Ready is the old revision's"
    kserve.rolls_out(new=1, total=2, available=1)
    assert step.goes_on(), "the old pod is what is available"
    kserve.rolls_out(new=1, total=2, available=2)
    assert step.goes_on(), "the old pod still gets requests"
    kserve.rolls_out()
    before = deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert step.succeeded().revision != before


def test_one_look_at_a_flickering_service_is_not_enough(
    quick: Timing,
    kserve: KServe,
    start: Start,
    server: ThreadedServer,
    unnoticed: Any,
    until: Until,
) -> None:
    with unnoticed():
        step = start(replace(quick, confirmations=5))
        until(kserve.service)
        kserve.rolls_out()
        flickers = Flickers(server.api)
        server.faults.add(Fault(flickers, "get", f"*/inferenceservices/{NAME}", times=None))
    step.succeeded()
    assert flickers.looks == Flickers.TIMES * 5 + 5


def test_nobody_is_blamed_for_the_time_in_which_the_server_did_not_answer(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until, clock: Clock
) -> None:
    step = start(timeout=60)
    until(kserve.service)
    with unanswered(server, "get", "*/deployments/*"):
        before = len(server.requests)
        until(lambda: any("deployments" in each.path for each in server.requests[before:]))
        clock.ahead += 70.0
    assert step.goes_on()
    kserve.serves()
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
            raise conflict(INFERENCE_SERVICE, NAME)

    server.call(server.api.add_webhook, INFERENCE_SERVICE, collide)
    step = update()
    assert collisions == 0
    kserve.rolls_out()
    step.succeeded()


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
    assert step.goes_on(), "the old service still is there"
    kserve._mutate(INFERENCE_SERVICE, NAME, lambda obj: obj["metadata"].update(finalizers=[]))

    def renewed() -> bool:
        found = kserve.service()
        return bool(found) and found["metadata"]["uid"] != deployed["metadata"]["uid"]  # type: ignore[index]

    until(renewed)
    kserve.serves()
    step.succeeded()


def test_a_service_that_does_not_go_is_said_to_be_held(
    quick: Timing, kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    kserve._mutate(
        INFERENCE_SERVICE, NAME, lambda obj: obj["metadata"].update(finalizers=["example.com/hold"])
    )
    server.call(server.api.delete, INFERENCE_SERVICE, NAMESPACE, NAME)
    assert "example.com/hold" in start(replace(quick, deletion_timeout=0.2)).failed()


def test_a_service_deleted_while_it_is_waited_for_fails_the_step(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until
) -> None:
    step = start()
    until(kserve.service)
    server.call(server.api.delete, INFERENCE_SERVICE, NAMESPACE, NAME)
    assert "was deleted while it was waited for" in step.failed()
