"""Whether the operator has acknowledged a job, and who is to blame when it has not."""

from __future__ import annotations

from typing import Any

import pytest
from harness.faults.actions import LostAnswer
from harness.faults.watches import SilentWatch

from kfp_pytorch.launcher.errors import JobFailed


def test_a_job_that_no_operator_looks_at_fails_soon_and_says_so(step: Any, hands: Any) -> None:
    run = step(limits={"acknowledge": 0.3}, start_timeout=3600)
    words = run.failed(JobFailed)
    assert "not acknowledged" in words
    assert "operator" in words
    hands.until(lambda: hands.jobs() == [])


def test_an_empty_status_is_no_acknowledgement(step: Any, hands: Any) -> None:
    with hands.unanswered():
        run = step(limits={"acknowledge": 0.5})
        hands.set_conditions(run.job)
    assert "not acknowledged" in run.failed(JobFailed)


def test_a_silent_watch_is_no_proof_that_nobody_looks_at_the_job(step: Any, hands: Any) -> None:
    hands.fault(SilentWatch(), "watch", "*", times=None)
    with hands.unanswered():
        run = step(limits={"acknowledge": 0.3, "watch_idle": 0.8, "slow_interval": 60.0})
        hands.running(run.job)
        hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", f"pytorchjobs/{run.job}"))
    hands.success(run.job)
    run.succeeded()


def test_the_operator_is_not_blamed_for_the_time_that_the_server_did_not_answer(
    step: Any, hands: Any, clock: Any, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.install(monkeypatch, "waiting.watch")
    run = step(limits={"acknowledge": 60.0})
    hands.until(lambda: hands.count("watch", "/pytorchjobs"))
    with hands.unanswered("get", f"*/pytorchjobs/{run.job}"):
        hands.server.go_away(0.05)
        hands.until(lambda: hands.server.faults.struck())
        clock.ahead += 70.0
    later(run, 0.0)
    hands.set_conditions(run.job, "Created")
    hands.success(run.job)
    run.succeeded()


def test_nor_for_the_time_until_a_create_was_answered(step: Any, hands: Any) -> None:
    hands.fault(LostAnswer(), "create")
    hands.server.set_clock(-70)
    run = step(limits={"acknowledge": 60.0})
    hands.job(run.job)
    hands.server.set_clock(0)
    hands.server.go_away(0.05)
    hands.until(lambda: hands.count("get", f"pytorchjobs/{run.job}"))
    hands.set_conditions(run.job, "Created")
    hands.success(run.job)
    run.succeeded()


def test_pods_are_an_acknowledgement_though_no_condition_is_written(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    run = step(limits={"acknowledge": 60.0})
    hands.running(run.job)
    says("starting")
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()
