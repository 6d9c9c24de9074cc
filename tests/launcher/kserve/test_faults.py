"""What goes wrong between a deployment and the API server, and who else changes the service."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness.faults.actions import Answer, Call, Forbidden, LostAnswer, Reset, Stall
from harness.faults.plan import Fault
from harness.faults.restart import Restart
from harness.hands import HASTY, IMPATIENT, connected

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import CannotObserve, PermissionMissing
from kfp_pytorch.launcher.kserve.deploy import DeployFailed, Timing
from kfp_pytorch.launcher.kubernetes.api_errors import NotFound, Refused
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy

SERVICES = "*/inferenceservices*"
DEPLOYMENTS = "*/deployments/*"
MISSING_NAMESPACE = json.dumps(
    {
        "kind": "Status",
        "reason": "NotFound",
        "message": 'namespaces "default" not found',
        "details": {"name": "default", "kind": "namespaces"},
    }
)

Object = dict[str, Any]
Start = Callable[..., Any]
KServe = ThreadedServer = Clock = Any
Unnoticed = Callable[[], Any]
Until = Callable[..., Any]


@pytest.fixture
def kube(server: ThreadedServer) -> Any:
    """A connection that soon asks again."""
    return connected(server, HASTY)


@pytest.fixture
def impatient(server: ThreadedServer) -> Any:
    """One that soon gives up, though not as soon as for what only explains."""
    return connected(server, replace(IMPATIENT, unavailability_budget=3.0))


def fault(server: ThreadedServer, action: Any, verb: str, path: str, **how: Any) -> None:
    server.faults.add(Fault(action, verb, path, **how))


@pytest.mark.parametrize("path", [SERVICES, DEPLOYMENTS])
@pytest.mark.parametrize(
    "action",
    [
        Answer(404),
        Answer(400),
        Answer(401),
        Answer(429, retry_after=0),
        Answer(503),
        Answer(200, body='{"kind": "Status", "metadata": {}}'),
        Reset(after_bytes=20),
        Stall(),
    ],
    ids=repr,
)
def test_answers_that_tell_nothing_for_a_while_fail_no_rollout(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until, action: Any, path: str
) -> None:
    step = start(timeout=60)
    until(kserve.service)
    fault(server, action, "get", path, times=2)
    until(lambda: server.faults.struck() == 2)
    kserve.serves()
    step.succeeded()


@pytest.mark.parametrize("then", ["reset", "timeout", "stall"])
def test_a_write_whose_answer_was_lost_is_not_made_twice(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until, then: str
) -> None:
    fault(server, LostAnswer(then), "create", SERVICES)
    step = start(timeout=60)
    until(lambda: server.faults.struck())
    until(kserve.service)
    kserve.serves()
    step.succeeded()
    fault(server, LostAnswer(then), "update", SERVICES)
    before = kserve.service()["metadata"]["generation"]
    step = start(metadata={"sha256": "2"}, timeout=60)
    until(lambda: kserve.service()["metadata"]["generation"] != before)
    kserve.serves()
    step.succeeded()
    assert kserve.service()["metadata"]["generation"] == before + 1


class MadeBetween:
    """Somebody makes the service just before the step's own create comes."""

    def __init__(self, server: ThreadedServer) -> None:
        self._api = server.api

    async def strike(self, call: Call) -> None:
        metadata = {"name": "digits", "namespace": "default", "labels": {"team": "vision"}}
        model = {"modelFormat": {"name": "sklearn"}, "storageUri": "s3://theirs/model"}
        made = {"metadata": metadata, "spec": {"predictor": {"model": model}}}
        self._api.create(INFERENCE_SERVICE, made)
        await call.handle()


def test_a_service_that_others_make_at_the_same_moment_is_changed_and_keeps_their_labels(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until
) -> None:
    fault(server, MadeBetween(server), "create", SERVICES, times=1)
    step = start(timeout=60)
    until(lambda: "kfp-pytorch" in str((kserve.service() or {}).get("spec")))
    kserve.serves()
    step.succeeded()
    now = kserve.service()
    assert now["metadata"]["labels"]["team"] == "vision"
    assert now["spec"]["predictor"]["model"]["storageUri"] == "pvc://kfp-pytorch/export"


def test_a_kind_that_the_server_learns_a_moment_later_is_waited_for(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until
) -> None:
    fault(server, Answer(404), "get", SERVICES, times=3)
    step = start()
    until(kserve.service)
    kserve.serves()
    step.succeeded()


def test_a_cluster_without_kserve_is_named_as_such(
    start: Start, server: ThreadedServer, quick: Timing
) -> None:
    fault(server, Answer(404), "", SERVICES, times=None)
    assert "Is KServe installed?" in start(replace(quick, kind_grace=0.1)).failed(DeployFailed)


def test_a_namespace_that_is_not_there_is_no_collision_to_be_waited_out(
    start: Start, server: ThreadedServer
) -> None:
    fault(server, Answer(404, body=MISSING_NAMESPACE), "create", SERVICES, times=None)
    assert 'namespaces "default" not found' in start().failed(NotFound)


def test_a_denial_that_looks_like_a_collision_is_not_waited_out(
    start: Start, server: ThreadedServer
) -> None:
    words = 'admission webhook "w.example" denied the request: that name is taken'
    fault(server, Answer(409, message=words), "create", SERVICES, times=None)
    assert words in start().failed(Refused)


def test_a_service_that_others_write_to_all_the_time_is_said_to_be_so(
    start: Start, server: ThreadedServer, quick: Timing, deployed: Object
) -> None:
    fault(server, Answer(409), "update", SERVICES, times=None)
    words = start(replace(quick, deletion_timeout=0.2), {"sha256": "2"}).failed()
    assert "another client changes it all the time" in words
    assert "--show-managed-fields" in words


def test_a_server_that_stays_away_leaves_the_service_and_says_so(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until, impatient: Any
) -> None:
    step = start(timeout=60, on=impatient)
    until(kserve.service)
    fault(server, Answer(503), "get", "*", times=None)
    words = step.failed(CannotObserve)
    assert "Could not observe" in words
    assert "InferenceService default/digits was left as it is" in words
    assert kserve.service() is not None


def test_what_only_explains_is_not_waited_for(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until, impatient: Any
) -> None:
    fault(server, Answer(503), "list", "*/pods", times=None)
    step = start(timeout=60, on=impatient)
    until(kserve.service)
    assert step.going(4), "longer than the connection's patience"
    kserve.serves()
    step.succeeded()


@pytest.mark.parametrize(
    ("verb", "path"), [("list", "*/pods"), ("list", "*/events"), ("get", "*/log")]
)
def test_what_only_explains_may_be_forbidden(
    kserve: KServe,
    start: Start,
    server: ThreadedServer,
    until: Until,
    unnoticed: Unnoticed,
    verb: str,
    path: str,
) -> None:
    fault(server, Forbidden(), verb, path, times=None)
    end = {"exitCode": 1, "reason": "Error"}
    status = {"name": "c", "image": "c:1", "imageID": "", "ready": False, "restartCount": 0}
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        carried = kserve.rolls_out(available=0)
        kserve.pod(carried, containerStatuses=[status | {"state": {"terminated": end}}])
    assert "may not" in step.failed(DeployFailed)
    kserve.serves()
    start().succeeded()


def test_what_tells_that_the_new_revision_serves_may_not(
    start: Start, server: ThreadedServer
) -> None:
    fault(server, Forbidden(), "get", DEPLOYMENTS, times=None)
    assert "get deployments" in start().failed(PermissionMissing)


def test_a_service_that_another_run_changes_is_not_waited_for(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start()
    until(kserve.service)
    other = start(metadata={"sha256": "2"})
    words = step.failed()
    assert "was changed by another client" in words
    kserve.serves()
    assert f"revision {other.succeeded().revision} now" in words


def test_another_service_of_the_same_name_is_not_taken_for_ours(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until
) -> None:
    step = start()
    until(kserve.service)

    def replaced() -> None:
        found = server.api.get(INFERENCE_SERVICE, "default", "digits")
        server.api.delete(INFERENCE_SERVICE, "default", "digits")
        for field in ("uid", "resourceVersion", "creationTimestamp"):
            found["metadata"].pop(field)
        del found["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
        server.api.create(INFERENCE_SERVICE, found)

    server.call(replaced)
    assert "revision without a name now" in step.failed()


def test_a_service_that_is_being_deleted_is_not_waited_for(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until
) -> None:
    step = start()
    until(kserve.service)
    held = {"finalizers": ["example.com/hold"]}
    kserve._mutate(INFERENCE_SERVICE, "digits", lambda obj: obj["metadata"].update(held))
    server.call(server.api.delete, INFERENCE_SERVICE, "default", "digits")
    assert "was deleted while it was waited for" in step.failed()


def test_each_time_that_it_is_ready_without_a_url_has_a_grace_of_its_own(
    quick: Timing, kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    step = start(replace(quick, url_grace=60.0), timeout=3600)
    until(kserve.service)
    kserve.rolls_out()
    for _ in range(2):
        kserve.says("True", url="")
        assert step.goes_on()
        clock.ahead += 40.0
        assert step.goes_on()
        kserve.says("False")
        assert step.goes_on()
    kserve.serves()
    step.succeeded()


def test_pods_that_a_quota_forbids_are_told_in_its_words(
    kserve: KServe, start: Start, until: Until, unnoticed: Unnoticed
) -> None:
    words = 'pods "digits-predictor-1" is forbidden: exceeded quota: gpus, used: nvidia.com/gpu=4'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    status = {"conditions": [refused | {"message": words}]}
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        kserve.rolls_out(new=0, total=0, available=0)
        kserve._mutate(
            DEPLOYMENT, "digits-predictor", lambda obj: obj["status"].update(status), "status"
        )
    assert words in step.failed().splitlines()[0]


def test_pods_whose_account_is_not_there_fail_the_step_soon(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(timeout=60)
    until(kserve.service)
    kserve.rolls_out(new=0, total=0, available=0)
    words = 'error looking up service account default/me: serviceaccount "me" not found'
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    status = {"conditions": [refused | {"message": words}]}
    kserve._mutate(
        DEPLOYMENT, "digits-predictor", lambda obj: obj["status"].update(status), "status"
    )
    said = step.failed().splitlines()
    assert words in said[0]
    assert "Create the account, or correct service_account" in said[1]


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_a_rollout_survives_a_restart_of_the_server_at_the_shipped_limits(
    kserve: KServe, start: Start, server: ThreadedServer, until: Until, when: str
) -> None:
    restart = Restart(refused_s=0.3, forbidden_s=2.5, streams_s=0.3)
    on = connected(server, RetryPolicy())
    if when == "before":
        server.restart(restart)
    step = start(Timing(), on=on, timeout=120)
    until(kserve.service)
    if when != "before":
        server.restart(restart)
    kserve.serves()
    step.succeeded()
