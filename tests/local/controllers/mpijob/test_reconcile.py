"""What the operator does about an MPIJob, by the states of its pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.controllers.mpijob import pods
from kfp_pytorch.local.controllers.mpijob.reconcile import Owned, reconcile
from kfp_pytorch.local.controllers.trainingoperator.job import Observed
from kfp_pytorch.local.controllers.trainingoperator.plan import Plan

Object = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
THEN = "2026-01-02T03:00:00Z"


def job(policy: str = "Never", status: Object | None = None, **run_policy: Any) -> Object:
    template = {"spec": {"containers": [{"name": "mpi", "image": "i"}]}}
    specs = {
        role: {"replicas": count, "restartPolicy": policy, "template": template}
        for role, count in (("Launcher", 1), ("Worker", 2))
    }
    meta = {"name": "j", "namespace": "ns", "uid": "u"}
    body = {"mpiReplicaSpecs": specs, "runPolicy": run_policy}
    return {"metadata": meta, "spec": body, "status": status or {}}


def plan(made: Object, **phases: str) -> Plan:
    """The plan where pods are in these phases: `launcher`, and workers as `worker_0`."""
    made = pods.defaulted(made)
    found = []
    for name, phase in phases.items():
        index = name.partition("_")[2]
        pod = pods.worker(made, int(index)) if index else pods.launcher(made)
        found.append({**pod, "status": {"phase": phase}})
    return reconcile(Observed(made, found, NOW), Owned(None, [], "kubectl exec"))


def created(found: Plan) -> list[str]:
    return [objects.name(each) for each in found.create]


def conditions(found: Plan) -> list[tuple[str, str, str]]:
    return [(c["type"], c["status"], c["reason"]) for c in found.status["conditions"]]


CREATED = ("Created", "True", "MPIJobCreated")


def test_a_new_job_gets_all_of_its_pods_at_once() -> None:
    found = plan(job())
    assert created(found) == ["j-config", "j-worker-0", "j-worker-1", "j-launcher"]
    assert conditions(found) == [CREATED]
    assert found.status["replicaStatuses"] == {"Launcher": {}, "Worker": {}}
    assert found.status["startTime"] == "2026-01-02T03:04:05Z"


def test_a_worker_that_is_gone_comes_back_while_the_launcher_runs() -> None:
    assert created(plan(job(), launcher="Running", worker_0="Running")) == [
        "j-config",
        "j-worker-1",
    ]
    assert created(plan(job(), launcher="Succeeded", worker_0="Running")) == []


def test_the_job_runs_as_soon_as_its_launcher_does() -> None:
    found = plan(job(), launcher="Running", worker_0="Pending", worker_1="Running")
    assert conditions(found) == [CREATED, ("Running", "True", "MPIJobRunning")]
    assert found.status["replicaStatuses"] == {"Launcher": {"active": 1}, "Worker": {"active": 1}}
    assert not found.events


def test_the_launchers_success_is_the_jobs() -> None:
    found = plan(job(), launcher="Succeeded", worker_0="Running", worker_1="Failed")
    assert conditions(found) == [CREATED, ("Succeeded", "True", "MPIJobSucceeded")]
    assert found.status["replicaStatuses"] == {"Launcher": {"succeeded": 1}, "Worker": {}}
    assert found.status["completionTime"] == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("phases", "who"),
    [
        ({"launcher": "Failed", "worker_0": "Running"}, "1 Launcher"),
        ({"launcher": "Running", "worker_0": "Failed", "worker_1": "Failed"}, "2 Worker"),
    ],
)
def test_a_pod_that_fails_for_good_fails_the_job(phases: dict[str, str], who: str) -> None:
    found = plan(job(), **phases)
    assert conditions(found)[-1] == ("Failed", "True", "MPIJobMPIJobFailed")
    message = found.status["conditions"][-1]["message"]
    assert message == f"MPIJob j is failed because {who} replica(s) failed."
    assert not found.delete_pods


def test_by_exit_code_the_job_restarts_for_ever_and_no_pod_does() -> None:
    found = plan(job("ExitCode"), launcher="Failed", worker_0="Running", worker_1="Running")
    assert conditions(found)[-1] == ("Restarting", "True", "MPIJobRestarting")
    assert not found.create
    assert not found.delete_pods


@pytest.mark.parametrize(
    ("clean", "deleted"),
    [
        ("None", []),
        ("Running", ["j-worker-0"]),
        ("All", ["j-launcher", "j-worker-0", "j-worker-1"]),
    ],
)
def test_pods_of_a_job_that_has_ended_go_by_its_policy(clean: str, deleted: list[str]) -> None:
    ended = {"type": "Succeeded", "status": "True", "reason": "MPIJobSucceeded", "message": ""}
    status = {"conditions": [ended], "replicaStatuses": {"Launcher": {"succeeded": 1}}}
    made = job(status={**status, "completionTime": THEN}, cleanPodPolicy=clean)
    found = plan(made, launcher="Succeeded", worker_0="Running", worker_1="Succeeded")
    assert found.delete_pods == deleted
    assert created(found) == []


def test_the_policy_may_also_stand_where_older_jobs_have_it() -> None:
    made = job()
    made["spec"]["cleanPodPolicy"] = "All"
    assert pods.defaulted(made)["spec"]["runPolicy"]["cleanPodPolicy"] == "All"


def test_a_suspended_job_has_no_pods() -> None:
    found = plan(job(suspend=True), launcher="Running", worker_0="Running")
    assert conditions(found)[-1] == ("Suspended", "True", "MPIJobSuspended")
    assert found.delete_pods == ["j-launcher", "j-worker-0"]
    assert created(found) == []


def test_workers_that_are_too_many_are_deleted() -> None:
    made = job()
    made["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = 1
    found = plan(made, launcher="Running", worker_0="Running", worker_1="Running")
    assert found.delete_pods == ["j-worker-1"]


def test_another_managers_job_is_left_alone() -> None:
    found = plan(job(managedBy="kueue.x-k8s.io/multikueue"))
    assert (found.create, found.status) == ([], {})
