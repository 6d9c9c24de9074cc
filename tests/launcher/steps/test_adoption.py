"""What an adopted job has behind it, and what the launcher makes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from harness import played
from harness.faults.actions import Answer

from kfp_pytorch.launcher.errors import JobFailed


def an_hour_old(step: Any, hands: Any) -> Any:
    """A job that was made an hour ago."""
    hands.server.set_clock(-3600)
    first = step()
    hands.job(first.job)
    hands.server.set_clock(0)
    return first


def test_a_job_that_has_run_for_longer_than_a_start_may_take_is_followed_on(
    step: Any, hands: Any, told: list[str], says: Any
) -> None:
    first = an_hour_old(step, hands)
    hands.running(first.job)
    hands.set_conditions(first.job, "Created", "Running")
    says("running")
    told.clear()
    second = step(limits={"start": 600, "progress_interval": 0.1})
    says("still running")
    hands.success(first.job)
    first.succeeded()
    second.succeeded()


def test_it_is_so_though_its_pods_cannot_be_read_at_first(step: Any, hands: Any) -> None:
    first = an_hour_old(step, hands)
    hands.running(first.job)
    hands.set_conditions(first.job, "Created", "Running")
    hands.until(lambda: hands.count("watch", "/pods"))
    hands.fault(Answer(503), "list", "*/pods", times=6)
    second = step(limits={"start": 600, "gather": 0.05})
    hands.until(lambda: hands.server.faults.struck() == 6)
    hands.success(first.job)
    second.succeeded()


def test_the_time_that_a_job_was_queued_is_none_of_its_start(
    step: Any, hands: Any, says: Any
) -> None:
    first = an_hour_old(step, hands)
    made = hands.job(first.job)["metadata"]["creationTimestamp"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": "Created", "status": "True", "lastTransitionTime": made},
        {"type": "Suspended", "status": "False", "lastTransitionTime": now},
    ]
    hands.set_status(first.job, {"conditions": conditions})
    second = step(limits={"start": 600, "progress_interval": 0.1})
    says("still starting")
    hands.success(first.job)
    second.succeeded()


def test_a_job_whose_conditions_have_no_times_has_run_since_its_start(
    step: Any, hands: Any, says: Any
) -> None:
    first = an_hour_old(step, hands)
    hands.running(first.job)
    running = [{"type": "Running", "status": "True", "lastTransitionTime": None}]
    hands.set_status(first.job, {"conditions": running, "startTime": played.now()})
    second = step(limits={"run": 600, "progress_interval": 0.1})
    says("still running")
    hands.success(first.job)
    second.succeeded()


def test_a_start_that_was_over_before_the_adoption_is_over(step: Any, hands: Any) -> None:
    first = an_hour_old(step, hands)
    hands.set_conditions(first.job, "Created")
    hands.pod(first.job, phase="Pending")
    assert "start_timeout" in step(limits={"start": 600}).failed(JobFailed)
    first.failed(JobFailed)
