"""What an adopted job has behind it, and what the launcher makes of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from harness.faults.actions import Answer, Delay
from harness.objects import played

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


def test_another_image_and_command_of_an_adopted_job_are_logged_and_in_the_message(
    step: Any, hands: Any, says: Any
) -> None:
    first = step(cleanup="never")
    hands.job(first.job)
    second = step(image="train:2", command=["python", "other.py"], num_nodes=2)
    words = (
        "The job that was adopted was made from other inputs than this attempt of the step has: it "
        "has image 'train:1', not 'train:2', another command, 1 nodes, not 2."
    )
    says(f"warning: {words}")
    hands.set_conditions(first.job, "Failed: it broke")
    assert words in " ".join(second.failed(JobFailed).split())
    first.failed(JobFailed)


def test_the_pods_of_an_adopted_job_are_read_before_they_are_counted(
    step: Any, hands: Any, says: Any, told: list[str]
) -> None:
    first = step()
    hands.running(first.job)
    hands.set_conditions(first.job, "Created")
    hands.until(lambda: any("1 of 1 pods run" in line for line in told))
    told.clear()
    hands.fault(Delay(0.5), "list", "*/pods", times=1)
    second = step()
    says("starting: 1 of 1 pods run")
    assert not [line for line in told if "0 of 1" in line]
    hands.success(first.job)
    first.succeeded()
    second.succeeded()


def test_the_folder_to_resume_from_is_in_the_first_line(
    step: Any, hands: Any, told: list[str]
) -> None:
    run = step(key="a")
    hands.success(run.job)
    folder = run.succeeded().folder
    assert told[0] == f"created PyTorchJob default/{run.job}; folder {folder}"


def test_the_time_before_an_adoption_counts_for_the_active_deadline(
    step: Any, hands: Any, says: Any
) -> None:
    first = an_hour_old(step, hands)
    hands.running(first.job)
    started = {"startTime": hands.job(first.job)["metadata"]["creationTimestamp"]}
    hands.set_conditions(first.job, "Created", "Running", **started)
    says("running")
    second = step({"active": 3500.0})
    assert "(active_deadline)" in second.failed(JobFailed).splitlines()[0]
    first.failed(JobFailed)


def test_a_job_that_trained_before_the_operators_deadline_is_not_replaced(
    step: Any, hands: Any, told: list[str]
) -> None:
    first = step(cleanup="never")
    hands.running(first.job)
    result = {"version": 1, "status": "succeeded", "metrics": {"loss": 0.25}}
    hands.ended(first.job, 0, json.dumps(result))
    hands.set_conditions(first.job, "Failed: DeadlineExceeded: it was active too long")
    first.succeeded()
    uid = hands.job(first.job)["metadata"]["uid"]
    second = step(cleanup="never")
    second.succeeded()
    assert second.outputs.metrics.metadata == {"loss": 0.25}
    assert hands.job(first.job)["metadata"]["uid"] == uid


def test_a_job_that_the_operators_deadline_ended_is_replaced(step: Any, hands: Any) -> None:
    first = step(cleanup="never")
    hands.running(first.job)
    hands.ended(first.job, 143)
    hands.set_conditions(first.job, "Failed: DeadlineExceeded: it was active too long")
    first.failed(JobFailed)
    uid = hands.job(first.job)["metadata"]["uid"]
    second = step(cleanup="never")
    hands.until(lambda: hands.job(first.job)["metadata"]["uid"] != uid)
    hands.success(first.job)
    second.succeeded()


def test_what_a_person_is_told_fits_a_viewer_that_cuts_lines(
    step: Any, hands: Any, says: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = step(cleanup="never", key="a")
    hands.job(first.job)
    second = step(image="train:2", command=["python", "other.py"], cleanup="never", key="a")
    says("warning: ")
    hands.success(first.job)
    first.succeeded()
    folder = second.succeeded().folder
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 72
    assert f"  {folder}" in lines
