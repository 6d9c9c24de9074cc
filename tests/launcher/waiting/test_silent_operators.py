"""Operators that leave a job as it is, at shipped limits: the launcher judges by the pods too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.objects import played

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.steps.job import limits_of
from kfp_pytorch.launcher.waiting.limits import Limits

ERROR = {"rank": 1, "time": 5.0, "type": "ValueError", "message": "bad batch", "traceback": ""}
FAILED = json.dumps({"version": 1, "status": "failed", "error": ERROR})
NO_ACCOUNT = 'error looking up service account default/me: serviceaccount "me" not found'


def shipped(*names: str) -> dict[str, float]:
    """The limits that a test is about, as they are shipped."""
    return {name: getattr(Limits(), name) for name in names}


def started(step: Any, hands: Any, says: Any, limits: dict[str, float], **inputs: Any) -> Any:
    """A job of two nodes, both running."""
    run = step(limits, num_nodes=2, **inputs)
    hands.running(run.job)
    hands.running(run.job, "worker")
    hands.set_conditions(run.job, "Created", "Running")
    says("running")
    return run


@pytest.mark.parametrize(("role", "policy"), [("worker", "ExitCode"), ("master", "Never")])
def test_a_pod_that_failed_for_good_ends_the_step_after_a_minute(
    step: Any, hands: Any, says: Any, later: Any, clock: Any, role: str, policy: str
) -> None:
    limits = shipped("failed_pod", "final_status")
    run = started(step, hands, says, limits, restart_policy=policy)
    hands.ended(run.job, 1, FAILED, role)
    says("ended: ")
    later(run, 50.0)
    clock.ahead += 15.0
    message = run.failed(JobFailed)
    assert message.startswith(f"Rank 1 ({run.job}-{role}-0) raised ValueError: bad batch")
    words = " ".join(message.split())
    assert f"{run.job}-{role}-0 failed and is not started again" in words
    assert "the Training Operator did not act on it in 60 s" in words
    hands.until(lambda: hands.jobs() == [])


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ("ExitCode", {"containerStatuses": [played.container(terminated=played.end(137))]}),
        ("ExitCode", {"reason": "Evicted"}),
        ("OnFailure", {"reason": "Evicted"}),
    ],
)
def test_a_pod_that_the_operator_makes_anew_is_waited_for(
    step: Any, hands: Any, says: Any, later: Any, told: Any, policy: str, status: Any
) -> None:
    run = started(step, hands, says, shipped("failed_pod"), restart_policy=policy)
    hands.pod(run.job, "worker", 0, phase="Failed", **status)
    hands.until(lambda: any("1 of 2 pods run" in line for line in told))
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()


def test_a_worker_that_failed_does_not_outweigh_the_success_of_the_master(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    limits = shipped("failed_pod", "final_status")
    run = started(step, hands, says, limits, restart_policy="Never")
    hands.ended(run.job, 1, role="worker")
    hands.ended(run.job, 0)
    says("ended: ")
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()


def test_a_pod_that_the_queue_takes_back_is_no_failure(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    run = started(step, hands, says, shipped("failed_pod"), restart_policy="Never")

    def hold(pod: Any) -> None:
        pod["metadata"]["finalizers"] = ["test/hold"]

    name = f"{run.job}-worker-0"
    hands.server.call(hands.server.api.mutate, POD, "default", name, hold)
    hands.delete(POD, name)
    hands.ended(run.job, 143, role="worker")
    says("ended: ")
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()


def test_the_launcher_applies_the_active_deadline_itself(
    step: Any, hands: Any, says: Any, later: Any, clock: Any
) -> None:
    limits = limits_of(parse_inputs(image="a", active_deadline=900))
    run = started(step, hands, says, {"active": limits.active}, active_deadline=900)
    assert hands.job(run.job)["spec"]["runPolicy"]["activeDeadlineSeconds"] == 960
    later(run, 880.0)
    clock.ahead += 25.0
    message = run.failed(JobFailed)
    assert message.startswith(
        f"PyTorchJob {run.job} was still active after 15 min (active_deadline)."
    )
    assert "Raise active_deadline" in message
    hands.until(lambda: hands.jobs() == [])


def test_a_training_that_had_ended_before_the_deadline_has_succeeded(
    step: Any, hands: Any, says: Any, told: list[str]
) -> None:
    run = started(step, hands, says, shipped("final_status"), active_deadline=900)
    result = {"version": 1, "status": "succeeded", "metrics": {"loss": 0.25}}
    hands.ended(run.job, 0, json.dumps(result))
    for role in ("master", "worker"):
        hands.delete(POD, f"{run.job}-{role}-0")
    hands.set_conditions(run.job, "Created", "Failed: DeadlineExceeded: it was active too long")
    run.succeeded()
    assert run.outputs.metrics.metadata == {"loss": 0.25}
    assert [line for line in told if "its first pod had succeeded before" in line]


@pytest.mark.parametrize("limit", ["active_deadline", "timeout"])
@pytest.mark.parametrize("stays", [False, True], ids=["pod ends", "sidecar runs on"])
def test_a_training_that_ended_in_the_last_second_of_a_limit_has_succeeded(
    step: Any, hands: Any, later: Any, clock: Any, limit: str, stays: bool, says: Any
) -> None:
    inputs = {limit: 900}
    limits = limits_of(parse_inputs(image="a", **inputs))
    counted = {"active": limits.active, "run": limits.run}
    run = started(step, hands, says, counted | shipped("final_status"), **inputs)
    later(run, 880.0)
    ended = [played.container(terminated=played.end(0))]
    hands.pod(run.job, phase="Running", containerStatuses=ended)
    later(run, 25.0)
    if stays:
        clock.ahead += 65.0
        # Any change of a pod has the launcher look at its clock.
        hands.pod(run.job, phase="Running", containerStatuses=ended)
        assert f"({limit})" in run.failed(JobFailed)
    else:
        hands.success(run.job)
        run.succeeded()


def test_a_training_that_the_deadline_ended_has_failed(step: Any, hands: Any, says: Any) -> None:
    run = started(step, hands, says, {}, active_deadline=900)
    hands.ended(run.job, 143)
    hands.set_conditions(run.job, "Created", "Failed: it was active longer than the deadline")
    assert "Raise active_deadline" in run.failed(JobFailed)


@pytest.mark.parametrize("ended", [False, True], ids=["while-master-runs", "after-its-end"])
def test_a_worker_that_is_refused_permanently_ends_the_step_within_30_s(
    step: Any, hands: Any, says: Any, ended: bool
) -> None:
    names = ("refusal_grace", "missing_pods_interval", "quick_interval", "progress_interval")
    shown = shipped(*names, "final_status", "start")
    # At the latest the event comes right after a read of events, and nothing else happens then.
    assert shown["missing_pods_interval"] + shown["refusal_grace"] <= 25.0
    run = step(shown, num_nodes=2, cleanup="never")
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    if ended:
        hands.ended(run.job, 0)
    says("running")
    hands.event(run.job, "FailedCreatePod", f"Error creating: {NO_ACCOUNT}")
    message = run.failed(JobFailed, within=30.0)
    assert f"PyTorchJob {run.job} gets only 1 of its 2 pods" in " ".join(message.split())
    assert "Create the account, or correct service_account" in " ".join(message.split())


def test_a_refusal_that_is_past_does_not_count_when_a_pod_is_made_anew(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    run = step(shipped("refusal_grace"), num_nodes=2, restart_policy="ExitCode")
    hands.running(run.job)
    hands.event(run.job, "FailedCreatePod", f"Error creating: {NO_ACCOUNT}")
    hands.until(lambda: hands.count("list", "/events") > 1)
    hands.running(run.job, "worker")
    hands.set_conditions(run.job, "Created", "Running")
    says("running")
    hands.delete(POD, f"{run.job}-worker-0")
    later(run, 30.0)
    hands.running(run.job, "worker")
    hands.success(run.job)
    run.succeeded()
