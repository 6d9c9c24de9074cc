"""One reconciliation of a PyTorchJob, as tables: jobs and pods in, pods and conditions out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.controllers.pytorchjob.pods import MASTER, WORKER, defaulted, pod, service
from kfp_pytorch.local.controllers.pytorchjob.reconcile import reconcile
from kfp_pytorch.local.controllers.trainingoperator.plan import Plan

Object = dict[str, Any]
Make = Callable[..., Object]

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_pod(
    job: Object,
    replica_type: str = MASTER,
    index: int = 0,
    phase: str = "Running",
    code: int | None = None,
    restarts: int = 0,
    deleting: bool = False,
) -> Object:
    made = pod(defaulted(job), replica_type, index)
    if deleting:
        made["metadata"]["deletionTimestamp"] = objects.timestamp(NOW)
    state = {"terminated": {"exitCode": code}} if code is not None else {}
    status = {"name": "pytorch", "restartCount": restarts, "state": state}
    made["status"] = {"phase": phase, "containerStatuses": [status]}
    return made


def conditions(plan: Plan) -> dict[str, str]:
    return {each["type"]: each["status"] for each in plan.status.get("conditions", [])}


def with_status(job: Object, plan: Plan) -> Object:
    return {**job, "status": plan.status}


def created(plan: Plan, kind: str = "Pod") -> list[str]:
    return [each["metadata"]["name"] for each in plan.create if each["kind"] == kind]


# Conditions.


def test_a_new_job_gets_its_pods_and_services(make_job: Make) -> None:
    plan = reconcile(make_job(workers=2), [], [], NOW)
    assert created(plan) == ["j-master-0", "j-worker-0", "j-worker-1"]
    assert created(plan, "Service") == created(plan)
    assert conditions(plan) == {"Created": "True"}
    assert plan.status["startTime"] == "2025-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("master", "worker", "expected"),
    [
        ("Running", "Pending", {"Running": "True"}),
        ("Pending", "Running", {}),
        ("Running", "Succeeded", {"Running": "True"}),
        ("Succeeded", "Running", {"Succeeded": "True"}),
        ("Succeeded", "Failed", {"Succeeded": "True", "Restarting": "True"}),
    ],
)
def test_with_a_master_it_alone_decides(
    make_job: Make, master: str, worker: str, expected: dict[str, str]
) -> None:
    job = make_job()
    pods = [make_pod(job, MASTER, 0, master), make_pod(job, WORKER, 0, worker)]
    plan = reconcile(job, pods, [], NOW)
    assert conditions(plan) == {"Created": "True", **expected}


@pytest.mark.parametrize(
    ("phases", "elastic", "expected"),
    [
        (["Succeeded", "Running"], None, {"Running": "True"}),
        (["Succeeded", "Succeeded"], None, {"Succeeded": "True"}),
        (["Succeeded", "Running"], {}, {"Succeeded": "True"}),
    ],
)
def test_without_a_master_all_workers_decide_or_any_elastic_one(
    make_job: Make, phases: list[str], elastic: Object | None, expected: dict[str, str]
) -> None:
    job = make_job(master=0, workers=2, **({} if elastic is None else {"elasticPolicy": elastic}))
    pods = [make_pod(job, WORKER, index, phase) for index, phase in enumerate(phases)]
    assert conditions(reconcile(job, pods, [], NOW)) == {"Created": "True", **expected}


def test_when_a_job_finishes_running_becomes_false_and_stays(make_job: Make) -> None:
    job = make_job()
    running = reconcile(job, [make_pod(job), make_pod(job, WORKER)], [], NOW)
    job = with_status(job, running)
    pods = [make_pod(job, phase="Succeeded"), make_pod(job, WORKER)]
    plan = reconcile(job, pods, [], NOW + timedelta(seconds=9))
    assert conditions(plan) == {"Created": "True", "Running": "False", "Succeeded": "True"}
    assert plan.status["completionTime"] == "2025-01-02T03:04:14Z"
    assert plan.status["replicaStatuses"][MASTER]["succeeded"] == 1


def test_running_and_restarting_replace_each_other(make_job: Make) -> None:
    job = make_job(policy="OnFailure")
    job = with_status(job, reconcile(job, [make_pod(job), make_pod(job, WORKER)], [], NOW))
    evicted = [make_pod(job), make_pod(job, WORKER, phase="Failed")]
    plan = reconcile(job, evicted, [], NOW)
    assert conditions(plan) == {"Created": "True", "Restarting": "True"}
    assert plan.delete_pods == ["j-worker-0"]
    job = with_status(job, plan)
    plan = reconcile(job, [make_pod(job), make_pod(job, WORKER)], [], NOW)
    assert conditions(plan) == {"Created": "True", "Running": "True"}


def test_under_never_a_failed_pod_fails_the_job_and_nothing_else_is_written(make_job: Make) -> None:
    job = make_job(policy="Never")
    plan = reconcile(job, [make_pod(job), make_pod(job, WORKER, phase="Failed", code=1)], [], NOW)
    assert conditions(plan) == {"Created": "True", "Running": "False", "Failed": "True"}
    failed = plan.status["conditions"][-1]
    assert failed["reason"] == "PyTorchJobFailed"
    assert failed["message"] == "PyTorchJob j is failed because 1 Worker replica(s) failed."
    job = with_status(job, plan)
    later = reconcile(job, [make_pod(job, phase="Succeeded")], [], NOW)
    assert conditions(later) == conditions(plan)


@pytest.mark.parametrize(
    ("code", "expected", "deleted"),
    [(1, "Failed", []), (127, "Failed", []), (128, "Restarting", ["j-master-0"])],
)
def test_an_exit_code_decides_whether_a_pod_is_recreated(
    make_job: Make, code: int, expected: str, deleted: list[str]
) -> None:
    job = make_job(workers=0, policy="ExitCode")
    made = make_pod(job, phase="Failed", code=code)
    assert made["spec"]["restartPolicy"] == "Never"
    plan = reconcile(job, [made], [], NOW)
    assert conditions(plan)[expected] == "True"
    assert plan.delete_pods == deleted


# Limits.


@pytest.mark.parametrize(
    ("limit", "restarts", "failed"),
    [
        (None, (50, 50), False),
        (3, (1, 1), False),
        (3, (2, 1), True),
        (0, (0, 0), False),
        (0, (1, 0), True),
        (1, (1, 0), True),
    ],
)
def test_restarts_of_all_pods_count_towards_the_backoff_limit(
    make_job: Make, limit: int | None, restarts: tuple[int, int], failed: bool
) -> None:
    job = make_job(**({} if limit is None else {"backoffLimit": limit}))
    kinds = (MASTER, WORKER)
    pods = [make_pod(job, kind, restarts=n) for kind, n in zip(kinds, restarts, strict=True)]
    plan = reconcile(job, pods, [], NOW)
    assert (conditions(plan).get("Failed") == "True") is failed


def test_at_the_backoff_limit_pods_are_deleted_under_any_clean_pod_policy(make_job: Make) -> None:
    job = make_job(backoffLimit=1, cleanPodPolicy="None")
    plan = reconcile(job, [make_pod(job, restarts=1), make_pod(job, WORKER)], [], NOW)
    assert plan.delete_pods == ["j-master-0", "j-worker-0"]
    assert plan.status["conditions"][-1]["message"] == (
        "Job j has failed because it has reached the specified backoff limit"
    )


def test_only_running_pods_count_and_none_that_is_never_restarted(make_job: Make) -> None:
    job = make_job(workers=0, backoffLimit=1)
    waiting = make_pod(job, phase="Pending", restarts=5)
    assert "Failed" not in conditions(reconcile(job, [waiting], [], NOW))
    job = make_job(workers=0, backoffLimit=1, policy="Never")
    assert "Failed" not in conditions(reconcile(job, [make_pod(job, restarts=5)], [], NOW))


def test_a_job_is_not_requeued_for_its_deadline(make_job: Make) -> None:
    job = make_job(activeDeadlineSeconds=60)
    assert reconcile(job, [], [], NOW).requeue_at is None


def test_a_job_past_its_deadline_fails_though_its_pod_has_ended_well(make_job: Make) -> None:
    job = make_job(activeDeadlineSeconds=60)
    job = with_status(job, reconcile(job, [], [], NOW))
    ended = make_pod(job, phase="Succeeded", code=0)
    plan = reconcile(job, [ended], [], NOW + timedelta(seconds=60))
    assert conditions(plan)["Failed"] == "True"
    assert plan.delete_pods == ["j-master-0"]
    assert plan.status["conditions"][-1]["message"] == (
        "Job j has failed because it was active longer than specified deadline"
    )


@pytest.mark.parametrize(
    ("policy", "deleted"),
    [
        (None, []),
        ("None", []),
        ("Running", ["j-worker-0", "j-worker-1"]),
        ("All", ["j-master-0", "j-worker-0", "j-worker-1"]),
    ],
)
def test_the_clean_pod_policy_decides_which_pods_are_left(
    make_job: Make, policy: str | None, deleted: list[str]
) -> None:
    job = make_job(workers=2, **({"cleanPodPolicy": policy} if policy else {}))
    pods = [
        make_pod(job, phase="Succeeded"),
        make_pod(job, WORKER, 0, "Running"),
        make_pod(job, WORKER, 1, "Pending"),
    ]
    job = with_status(job, reconcile(job, pods, [], NOW))
    plan = reconcile(job, pods, [], NOW)
    assert plan.delete_pods == deleted
    assert plan.delete_services == deleted


def test_after_a_success_running_pods_count_as_succeeded(make_job: Make) -> None:
    job = make_job()
    pods = [make_pod(job, phase="Succeeded"), make_pod(job, WORKER)]
    job = with_status(job, reconcile(job, pods, [], NOW))
    counts = reconcile(job, pods, [], NOW).status["replicaStatuses"][WORKER]
    assert counts == {"succeeded": 1}


def test_a_pod_that_is_deleted_while_it_runs_counts_as_failed(make_job: Make) -> None:
    job = make_job(policy="Never")
    plan = reconcile(job, [make_pod(job, deleting=True), make_pod(job, WORKER)], [], NOW)
    assert plan.status["replicaStatuses"][MASTER]["failed"] == 1
    assert conditions(plan)["Failed"] == "True"


def test_a_finished_job_is_deleted_after_its_ttl(make_job: Make) -> None:
    job = make_job(workers=0, ttlSecondsAfterFinished=10)
    pods = [make_pod(job, phase="Succeeded")]
    job = with_status(job, reconcile(job, pods, [], NOW))
    plan = reconcile(job, pods, [], NOW)
    assert not plan.delete_job
    assert plan.requeue_at == NOW + timedelta(seconds=10)
    assert reconcile(job, pods, [], NOW + timedelta(seconds=10)).delete_job


def test_a_failed_job_without_a_completion_time_is_not_deleted(make_job: Make) -> None:
    job = make_job(workers=0, policy="ExitCode", ttlSecondsAfterFinished=0)
    pods = [make_pod(job, phase="Failed", code=1)]
    failed = reconcile(job, pods, [], NOW)
    assert conditions(failed)["Failed"] == "True"
    assert "completionTime" not in failed.status
    later = reconcile(with_status(job, failed), pods, [], NOW + timedelta(days=1))
    assert not later.delete_job


# Suspension, and other managers.


def test_a_suspended_job_has_no_pods_until_it_is_resumed(make_job: Make) -> None:
    job = make_job(suspend=True)
    plan = reconcile(job, [], [], NOW)
    assert not plan.create
    assert conditions(plan) == {"Created": "True", "Suspended": "True"}
    assert "startTime" not in plan.status
    job = with_status(job, plan)
    job["spec"]["runPolicy"]["suspend"] = False
    plan = reconcile(job, [], [], NOW + timedelta(hours=1))
    assert created(plan) == ["j-master-0", "j-worker-0"]
    assert conditions(plan) == {"Created": "True", "Suspended": "False"}
    (resumed,) = [each for each in plan.status["conditions"] if each["type"] == "Suspended"]
    assert resumed["reason"] == "PyTorchJobResumed"
    assert plan.status["startTime"] == "2025-01-02T04:04:05Z"


def test_a_running_job_that_is_suspended_loses_its_pods_and_has_not_failed(make_job: Make) -> None:
    job = make_job()
    pods = [make_pod(job), make_pod(job, WORKER)]
    job = with_status(job, reconcile(job, pods, [], NOW))
    job["spec"]["runPolicy"]["suspend"] = True
    plan = reconcile(job, pods, [], NOW)
    assert plan.delete_pods == ["j-master-0", "j-worker-0"]
    assert conditions(plan) == {"Created": "True", "Running": "False", "Suspended": "True"}


def test_a_job_of_another_manager_and_one_that_is_deleted_are_left_alone(make_job: Make) -> None:
    theirs = make_job(managedBy="kueue.x-k8s.io/multikueue")
    assert reconcile(theirs, [], [], NOW) == Plan({})
    deleted = make_job()
    deleted["metadata"]["deletionTimestamp"] = objects.timestamp(NOW)
    assert reconcile(deleted, [], [], NOW) == Plan({})


def test_pods_beyond_the_wanted_number_are_deleted(make_job: Make) -> None:
    job = make_job(master=0, workers=1)
    pods = [make_pod(job, WORKER, index) for index in range(3)]
    assert reconcile(job, pods, [], NOW).delete_pods == ["j-worker-1", "j-worker-2"]


def test_a_suspended_job_has_an_event_at_every_reconciliation(make_job: Make) -> None:
    job = make_job(suspend=True)
    first = reconcile(job, [], [], NOW)
    second = reconcile(with_status(job, first), [], [], NOW)
    assert second.status == first.status
    for plan in (first, second):
        assert [event.reason for event in plan.events] == ["PyTorchJobSuspended"]


def test_a_second_reconciliation_changes_nothing(make_job: Make) -> None:
    job = make_job()
    pods = [make_pod(job), make_pod(job, WORKER)]
    services = [service(defaulted(job), kind, 0) for kind in (MASTER, WORKER)]
    job = with_status(job, reconcile(job, pods, services, NOW))
    plan = reconcile(job, pods, services, NOW + timedelta(minutes=5))
    assert plan.status == job["status"]
    assert plan == Plan(job["status"])
