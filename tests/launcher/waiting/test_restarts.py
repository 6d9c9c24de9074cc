"""Whole steps while the API server restarts, or refuses for seconds, at the shipped limits."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from harness.faults.actions import Answer, Forbidden
from harness.faults.restart import Restart
from harness.hands import connected

from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.waiting.limits import Limits

# Watches end soon: of a real server some go on for longer than it takes to start.
RESTART = Restart(refused_s=0.3, forbidden_s=2.5, streams_s=0.3)
SHIPPED = asdict(Limits())


@pytest.fixture
def shipped(hands: Any) -> Any:
    return connected(hands.server, RetryPolicy())


def run_whole(step: Any, hands: Any, on: Any) -> Any:
    run = step(limits=SHIPPED, on=on)
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("watch", "/pytorchjobs") and hands.count("watch", "/pods"))
    return run


def test_a_waiting_step_survives_a_restart(step: Any, hands: Any, shipped: Any) -> None:
    run = run_whole(step, hands, shipped)
    hands.server.restart(RESTART)
    hands.success(run.job, metrics={"accuracy": 1.0})
    run.succeeded(120)
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


def test_a_step_that_begins_during_a_restart_trains(step: Any, hands: Any, shipped: Any) -> None:
    hands.server.restart(RESTART)
    run = step(limits=SHIPPED, on=shipped)
    hands.success(run.job)
    run.succeeded(120)


@pytest.mark.parametrize("refusal", [Forbidden(), Answer(401)], ids=repr)
def test_eight_seconds_of_refusals_end_no_step(
    step: Any, hands: Any, shipped: Any, refusal: Any
) -> None:
    run = run_whole(step, hands, shipped)
    hands.fault(refusal, "", "*", times=None, for_s=8.0)
    hands.server.go_away(0.05)
    hands.success(run.job)
    run.succeeded(120)


@pytest.mark.parametrize("answer", [Forbidden(), Answer(503)], ids=repr)
def test_what_was_seen_of_a_job_that_succeeded_decides_its_end(
    step: Any, hands: Any, shipped: Any, answer: Any
) -> None:
    run = run_whole(step, hands, shipped)
    reads = hands.count("get", "/pytorchjobs/")
    told = {"version": 1, "status": "succeeded", "metrics": {"accuracy": 1.0}}
    hands.ended(run.job, 0, json.dumps(told))
    # The first pod's end makes the launcher read the job.
    hands.until(lambda: hands.count("get", "/pytorchjobs/") > reads)
    hands.fault(answer, "list", "*/pods", times=None)
    hands.set_conditions(run.job, "Running=False", "Succeeded")
    run.succeeded(120)
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}
