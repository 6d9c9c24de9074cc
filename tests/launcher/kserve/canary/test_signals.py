"""A signal while a canary is promoted or taken back: what it leaves, what it says, who ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Stall
from harness.faults.plan import Fault
from harness.step_process import StepProcess

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL

KServe = Canary = Server = Until = Any
Rolls = Callable[..., Any]


@pytest.fixture
def rolling(server: Server, tmp_path: Path) -> Callable[..., StepProcess]:
    environ = {"KUBECONFIG": str(server.kubeconfig)}

    def start(action: str, **inputs: Any) -> StepProcess:
        given = {"service_name": "digits", "action": action, **inputs}
        return StepProcess(tmp_path, environ, "kserve_rollout", **given)

    return start


def stable(kserve: KServe) -> str:
    annotations = (kserve.service() or {})["spec"]["predictor"]["annotations"]
    return str(annotations[SPEC_HASH_LABEL])


def test_before_its_first_write_nothing_was_changed(
    server: Server, kserve: KServe, beside: Any, deployed: Any, rolling: Any, until: Until
) -> None:
    server.faults.add(Fault(Stall(), "get", "*/deployments/*", times=None))
    step = rolling("promote", revision=beside.revision)
    until(server.faults.struck)
    assert "InferenceService default/digits was not changed" in step.ended()
    assert stable(kserve) == deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]


def test_a_write_in_flight_may_have_been_made(
    server: Server, beside: Any, rolling: Any, until: Until
) -> None:
    server.faults.add(Fault(Stall(), "update", "*/inferenceservices*", times=None))
    step = rolling("promote", revision=beside.revision)
    until(server.faults.struck)
    assert "may have the canary's model as the stable one, and the canary still" in step.ended()


@pytest.mark.parametrize("stop", [StepProcess.ended, StepProcess.killed])
def test_a_promotion_that_was_stopped_midway_is_ended_by_the_next_attempt(
    kserve: KServe, canary: Canary, beside: Any, rolling: Any, rolls: Rolls, until: Until, stop: Any
) -> None:
    first = rolling("promote", revision=beside.revision)
    until(lambda: stable(kserve) == beside.revision)
    said = stop(first)
    assert not said or "the stable one, and the canary still" in said
    assert canary.entry
    kserve.serves()
    step = rolls("promote", revision=beside.revision)
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "promoted"


@pytest.mark.parametrize("stop", [StepProcess.ended, StepProcess.killed])
def test_a_rollback_that_was_stopped_midway_leaves_nothing_to_do_but_to_wait(
    kserve: KServe,
    canary: Canary,
    beside: Any,
    deployed: Any,
    rolling: Any,
    rolls: Rolls,
    until: Until,
    stop: Any,
) -> None:
    first = rolling("rollback", revision=beside.revision)
    until(lambda: not canary.entry)
    said = stop(first)
    assert not said or "may have the canary still, which gets no traffic" in said
    canary.goes()
    assert rolls("rollback", revision=beside.revision).did() == "nothing to do"
    assert stable(kserve) == deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
