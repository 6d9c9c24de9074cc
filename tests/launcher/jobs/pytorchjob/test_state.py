from __future__ import annotations

import itertools
from typing import Any

import pytest
from harness.objects.played import condition

from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.state import Phase

read_state, expected_pods = PYTORCH_JOB.read_state, PYTORCH_JOB.expected_pods
first_pod = PYTORCH_JOB.first_pod


def job(*conditions: str, suspend: bool | None = None, **status: Any) -> dict[str, Any]:
    """A job with conditions such as `Running` or `Running=False`."""
    written = []
    for text in conditions:
        kind, _, value = text.partition("=")
        written.append({"type": kind, "status": value or "True", "reason": f"PyTorchJob{kind}"})
    policy = {} if suspend is None else {"suspend": suspend}
    return {
        "metadata": {"name": "j"},
        "spec": {"runPolicy": policy},
        "status": {"conditions": written, **status},
    }


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        (["Created"], Phase.STARTING),
        (["Created", "Running"], Phase.RUNNING),
        (["Created", "Running=False", "Restarting"], Phase.RESTARTING),
        (["Created", "Running=False", "Succeeded"], Phase.SUCCEEDED),
        (["Created", "Running=False", "Failed"], Phase.FAILED),
        (["Created", "Running=False", "Succeeded", "Failed"], Phase.FAILED),
        (["Created", "Suspended", "Running=False"], Phase.QUEUED),
        (["Created", "Suspended=False", "Running"], Phase.RUNNING),
    ],
)
def test_the_order_of_conditions_means_nothing(conditions: list[str], phase: Phase) -> None:
    assert {read_state(job(*order)).phase for order in itertools.permutations(conditions)} == {
        phase
    }


@pytest.mark.parametrize("status", [None, {}, {"conditions": None}, {"conditions": []}])
def test_a_job_without_conditions_is_not_acknowledged(status: Any) -> None:
    assert read_state({"metadata": {}, "spec": {}, "status": status}).phase is Phase.UNACKNOWLEDGED
    assert read_state({"metadata": {}}).phase is Phase.UNACKNOWLEDGED


def test_a_suspended_job_is_queued_with_and_without_conditions() -> None:
    assert read_state(job(suspend=True)).phase is Phase.QUEUED
    assert read_state(job("Created", "Suspended", suspend=True)).phase is Phase.QUEUED
    assert read_state(job("Created", suspend=True)).phase is Phase.QUEUED
    assert read_state(job("Created", "Suspended=False", suspend=True)).phase is Phase.QUEUED


def test_a_resumed_job_that_only_says_suspended_false_is_starting() -> None:
    assert read_state(job("Suspended=False", suspend=False)).phase is Phase.STARTING


@pytest.mark.parametrize("value", ["False", "Unknown", "true", "1"])
def test_only_status_true_counts(value: str) -> None:
    assert read_state(job("Created", f"Failed={value}")).phase is Phase.STARTING


def test_of_conditions_of_one_type_the_last_to_change_counts_but_an_end_is_final() -> None:
    def at(second: int, text: str) -> dict[str, Any]:
        return condition(text) | {"lastTransitionTime": f"2025-11-27T12:00:0{second}Z"}

    def phases(*conditions: dict[str, Any]) -> set[Phase]:
        orders = itertools.permutations(conditions)
        return {read_state({"status": {"conditions": list(order)}}).phase for order in orders}

    resumed = (at(1, "Suspended"), at(2, "Suspended=False"), at(2, "Running"))
    assert phases(*resumed) == {Phase.RUNNING}
    assert phases(*resumed, at(3, "Suspended")) == {Phase.QUEUED}
    assert phases(at(1, "Failed"), at(2, "Failed=False"), at(2, "Running")) == {Phase.FAILED}


def test_a_success_with_failed_workers_carries_a_warning() -> None:
    state = read_state(job("Succeeded", replicaStatuses={"Worker": {"failed": 1}, "Master": {}}))
    assert state.phase is Phase.SUCCEEDED
    assert "1 Worker" in state.warning
    assert read_state(job("Succeeded", replicaStatuses={"Worker": {"succeeded": 3}})).warning == ""


def test_failed_beats_a_master_that_still_runs() -> None:
    state = read_state(job("Running", "Failed", replicaStatuses={"Master": {"active": 1}}))
    assert state.phase is Phase.FAILED


def test_a_deletion_is_seen_whatever_the_conditions_say() -> None:
    going = job("Running")
    going["metadata"]["deletionTimestamp"] = "2025-11-27T12:00:00Z"
    assert read_state(going).deleting


def test_an_elastic_job_is_whole_with_its_least_number_of_pods() -> None:
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}
    spec: dict[str, Any] = {"pytorchReplicaSpecs": replicas}
    assert expected_pods({"spec": spec}) == 4
    spec["elasticPolicy"] = {"minReplicas": 2, "maxReplicas": 4}
    assert expected_pods({"spec": spec}) == 2


@pytest.mark.parametrize(
    ("manager", "pods"),
    [("kueue.x-k8s.io/multikueue", 0), ("kubeflow.org/training-operator", 1), (None, 1)],
)
def test_a_job_that_runs_in_another_cluster_has_no_pods_here(manager: Any, pods: int) -> None:
    spec = {"runPolicy": {"managedBy": manager}, "pytorchReplicaSpecs": {"Master": {}}}
    assert expected_pods({"spec": spec}) == pods


@pytest.mark.parametrize(
    "status",
    [{"startTime": "2025-11-27T12:00:00Z"}, {"replicaStatuses": {"Master": {"active": 1}}}],
)
def test_a_status_without_conditions_is_an_acknowledgement(status: Any) -> None:
    assert read_state({"spec": {}, "status": status}).phase is Phase.STARTING


def test_a_start_begins_with_the_last_change_and_not_with_the_creation() -> None:
    """Created stays True while the job is in the queue."""
    resumed = job("Created", "Suspended=False")
    times = ("2025-11-27T12:00:00Z", "2025-11-27T17:00:00Z")
    for found, time in zip(resumed["status"]["conditions"], times, strict=True):
        found["lastTransitionTime"] = time
    assert read_state(resumed).since == times[1]
    resumed["status"]["conditions"].reverse()
    assert read_state(resumed).since == times[1]


def test_the_first_pod_is_the_master_or_worker_0() -> None:
    def made(role: str) -> dict[str, Any]:
        return {"metadata": {"name": "j"}, "spec": {"pytorchReplicaSpecs": {role: {}}}}

    assert first_pod(made("Master"), []) == "j-master-0"
    assert first_pod(made("Worker"), []) == "j-worker-0"


def test_a_spec_of_nulls_is_borne() -> None:
    spec = {"runPolicy": None, "elasticPolicy": None, "pytorchReplicaSpecs": None}
    for job in ({"spec": None}, {"spec": spec}):
        named = {**job, "metadata": {"name": "j"}}
        assert (expected_pods(named), first_pod(named, [])) == (0, "j-worker-0")
        assert read_state(named).phase is Phase.UNACKNOWLEDGED
    replicas = {"Master": {"replicas": None}, "Worker": None}
    assert expected_pods({"spec": {"pytorchReplicaSpecs": replicas}}) == 2
