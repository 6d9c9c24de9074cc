"""A server that fails for a while, and others who deploy, while a canary is promoted or goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.faults.actions import Answer, LostAnswer, Reset, Stall
from harness.faults.plan import Fault
from harness.hands import HASTY, connected

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.kserve.canary.changing import RolloutFailed

KServe = Canary = Server = Until = Any
Rolls = Start = Callable[..., Any]
SERVICES = "*/inferenceservices*"


@pytest.fixture
def kube(server: Server) -> Any:
    """A connection that soon asks again."""
    return connected(server, HASTY)


def stable(kserve: KServe) -> str:
    annotations = (kserve.service() or {})["spec"]["predictor"]["annotations"]
    return str(annotations[SPEC_HASH_LABEL])


@pytest.mark.parametrize(
    "action",
    [
        Answer(404),
        Answer(400),
        Answer(503),
        Answer(200, body='{"kind": "Status", "metadata": {}}'),
        Reset(after_bytes=20),
        Stall(),
    ],
    ids=repr,
)
def test_answers_that_tell_nothing_for_a_while_fail_no_rollback(
    server: Server, canary: Canary, beside: Any, rolls: Rolls, until: Until, action: Any
) -> None:
    step = rolls("rollback", revision=beside.revision)
    until(lambda: not canary.entry)
    server.faults.add(Fault(action, "get", SERVICES, times=2))
    until(lambda: server.faults.struck() == 2)
    canary.goes()
    assert step.did() == "rolled back"


def test_a_kind_that_the_server_learns_a_moment_later_is_waited_for(
    server: Server, canary: Canary, beside: Any, rolls: Rolls, until: Until
) -> None:
    server.faults.add(Fault(Answer(404), "get", SERVICES, times=3))
    step = rolls("rollback", revision=beside.revision)
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "rolled back"


@pytest.mark.parametrize("then", ["reset", "timeout", "stall"])
def test_a_write_whose_answer_was_lost_is_not_made_twice(
    server: Server,
    kserve: KServe,
    canary: Canary,
    beside: Any,
    rolls: Rolls,
    until: Until,
    then: str,
) -> None:
    server.faults.add(Fault(LostAnswer(then), "update", SERVICES))
    before = kserve.service()["metadata"]["generation"]
    step = rolls("rollback", revision=beside.revision)
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "rolled back"
    assert kserve.service()["metadata"]["generation"] == before + 1


def test_a_canary_that_does_not_serve_is_not_promoted(
    kserve: KServe, canary: Canary, deployed: Any, start: Start, rolls: Rolls, until: Until
) -> None:
    deploying = start(metadata={"sha256": "2"}, canary_traffic_percent=0, timeout=1)
    until(lambda: canary.entry)
    canary.comes(available=0)
    deploying.failed()
    before = kserve.service()["metadata"]["generation"]
    message = rolls("promote", timeout=1).failed(RolloutFailed)
    assert message.startswith("The canary of InferenceService default/digits does not serve")
    assert "rollback' takes the canary away" in message
    assert kserve.service()["metadata"]["generation"] == before
    step = rolls("rollback")
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "rolled back"
    assert stable(kserve) == deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]


def test_a_canary_that_others_deploy_in_its_place_is_not_waited_for_to_go(
    kserve: KServe, canary: Canary, beside: Any, rolls: Rolls, start: Start, until: Until
) -> None:
    step = rolls("rollback", revision=beside.revision)
    until(lambda: not canary.entry)
    assert step.going(), "its pods are still there"
    next_one = start(metadata={"sha256": "3"}, canary_traffic_percent=0)
    until(lambda: canary.entry)
    assert step.did() == "rolled back"
    canary.goes()
    canary.comes()
    assert next_one.succeeded().revision != beside.revision
