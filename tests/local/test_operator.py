"""The operator's stand-in, as tables: jobs and pods in, pods and conditions out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import ApiError
from kfp_pytorch.local.controllers import pytorchjob_admission, pytorchjob_pods
from kfp_pytorch.local.controllers.pytorchjob import Plan, reconcile
from kfp_pytorch.local.controllers.pytorchjob_pods import MASTER, WORKER, defaulted, pod, service

Object = dict[str, Any]
NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)


def replica(count: int, policy: str = "", **spec: Any) -> Object:
    container = {"name": "pytorch", "image": "i", "env": [{"name": "MINE", "value": "1"}]}
    template = {
        "metadata": {"annotations": {"a": "b"}, "labels": {"mine": "x"}},
        "spec": {"containers": [container], **spec},
    }
    found = {"replicas": count, "template": template}
    return {**found, "restartPolicy": policy} if policy else found


def make_job(
    master: int = 1, workers: int = 1, policy: str = "", status: Object | None = None, **spec: Any
) -> Object:
    specs = {MASTER: replica(master, policy)} if master else {}
    if workers:
        specs[WORKER] = replica(workers, policy)
    meta = {"name": "j", "namespace": "ns", "uid": "u"}
    run_policy = {key: spec.pop(key) for key in list(spec) if key in RUN_POLICY}
    body = {"pytorchReplicaSpecs": specs, "runPolicy": run_policy, **spec}
    return {"metadata": meta, "spec": body, **({"status": status} if status else {})}


RUN_POLICY = (
    "backoffLimit",
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "suspend",
    "managedBy",
)


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


def environment(made: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in made["spec"]["containers"][0]["env"]}


# Pods.


def test_a_pod_has_the_operators_name_labels_owner_and_policy() -> None:
    made = pod(defaulted(make_job()), WORKER, 0)
    assert made["metadata"]["name"] == "j-worker-0"
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["metadata"]["labels"] == {
        "mine": "x",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/job-name": "j",
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "0",
    }
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner["controller"]
    assert owner["blockOwnerDeletion"]
    assert owner["uid"] == "u"
    assert made["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("master", "replica_type", "index", "role"),
    [
        (1, MASTER, 0, "master"),
        (1, WORKER, 0, None),
        (0, WORKER, 0, "master"),
        (0, WORKER, 1, None),
    ],
)
def test_one_pod_has_the_role_of_the_master(
    master: int, replica_type: str, index: int, role: str | None
) -> None:
    made = pod(defaulted(make_job(master=master, workers=2)), replica_type, index)
    assert made["metadata"]["labels"].get("training.kubeflow.org/job-role") == role


@pytest.mark.parametrize(("replica_type", "index", "rank"), [(MASTER, 0, 0), (WORKER, 2, 3)])
def test_with_a_master_the_variables_are_the_operators(
    replica_type: str, index: int, rank: int
) -> None:
    job = defaulted(make_job(workers=3, nprocPerNode="2"))
    assert environment(pod(job, replica_type, index)) == {
        "MINE": "1",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "j-master-0",
        "PET_MASTER_ADDR": "j-master-0",
        "MASTER_PORT": "23456",
        "PET_MASTER_PORT": "23456",
        "WORLD_SIZE": "8",
        "RANK": str(rank),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": "2",
        "PET_NNODES": "4",
    }


@pytest.mark.parametrize(("nproc", "size"), [("auto", "2"), ("gpu", "2"), ("3", "6")])
def test_words_for_processes_count_as_one_in_the_world_size(nproc: str, size: str) -> None:
    made = pod(defaulted(make_job(nprocPerNode=nproc)), MASTER, 0)
    assert environment(made)["WORLD_SIZE"] == size


def test_with_workers_only_there_is_no_master_to_name() -> None:
    found = environment(pod(defaulted(make_job(master=0, workers=2)), WORKER, 1))
    assert found == {
        "MINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2",
    }


def test_an_elastic_job_meets_at_its_first_worker() -> None:
    policy = {
        "minReplicas": 1,
        "maxReplicas": 4,
        "maxRestarts": 3,
        "rdzvId": "id",
        "rdzvConf": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}],
    }
    found = environment(
        pod(defaulted(make_job(master=0, workers=2, elasticPolicy=policy)), WORKER, 0)
    )
    del found["MINE"]
    assert found == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_RDZV_ENDPOINT": "j-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:4",
        "PET_MAX_RESTARTS": "3",
        "PET_RDZV_ID": "id",
        "PET_RDZV_CONF": "a=1,b=2",
    }


def test_a_worker_first_waits_for_the_name_of_the_master() -> None:
    job = defaulted(make_job())
    assert "initContainers" not in pod(job, MASTER, 0)["spec"]
    (first,) = pod(job, WORKER, 0)["spec"]["initContainers"]
    assert first["name"] == "init-pytorch"
    assert "nslookup j-master-0" in first["command"][2]


def test_a_service_stands_before_each_pod() -> None:
    made = service(defaulted(make_job()), MASTER, 0)
    assert made["metadata"]["name"] == "j-master-0"
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]


# Conditions.


def test_a_new_job_gets_its_pods_and_services() -> None:
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
def test_with_a_master_it_alone_decides(master: str, worker: str, expected: dict[str, str]) -> None:
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
    phases: list[str], elastic: Object | None, expected: dict[str, str]
) -> None:
    job = make_job(master=0, workers=2, **({} if elastic is None else {"elasticPolicy": elastic}))
    pods = [make_pod(job, WORKER, index, phase) for index, phase in enumerate(phases)]
    assert conditions(reconcile(job, pods, [], NOW)) == {"Created": "True", **expected}


def test_when_a_job_finishes_running_becomes_false_and_stays() -> None:
    job = make_job()
    running = reconcile(job, [make_pod(job), make_pod(job, WORKER)], [], NOW)
    job = with_status(job, running)
    pods = [make_pod(job, phase="Succeeded"), make_pod(job, WORKER)]
    plan = reconcile(job, pods, [], NOW + timedelta(seconds=9))
    assert conditions(plan) == {"Created": "True", "Running": "False", "Succeeded": "True"}
    assert plan.status["completionTime"] == "2025-01-02T03:04:14Z"
    assert plan.status["replicaStatuses"][MASTER]["succeeded"] == 1


def test_running_and_restarting_replace_each_other() -> None:
    job = make_job(policy="OnFailure")
    job = with_status(job, reconcile(job, [make_pod(job), make_pod(job, WORKER)], [], NOW))
    evicted = [make_pod(job), make_pod(job, WORKER, phase="Failed")]
    plan = reconcile(job, evicted, [], NOW)
    assert conditions(plan) == {"Created": "True", "Restarting": "True"}
    assert plan.delete_pods == ["j-worker-0"]
    job = with_status(job, plan)
    plan = reconcile(job, [make_pod(job), make_pod(job, WORKER)], [], NOW)
    assert conditions(plan) == {"Created": "True", "Running": "True"}


def test_under_never_a_failed_pod_fails_the_job_and_nothing_else_is_written() -> None:
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
def test_an_exit_code_decides_whether_a_pod_is_made_again(
    code: int, expected: str, deleted: list[str]
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
    limit: int | None, restarts: tuple[int, int], failed: bool
) -> None:
    job = make_job(**({} if limit is None else {"backoffLimit": limit}))
    kinds = (MASTER, WORKER)
    pods = [make_pod(job, kind, restarts=n) for kind, n in zip(kinds, restarts, strict=True)]
    plan = reconcile(job, pods, [], NOW)
    assert (conditions(plan).get("Failed") == "True") is failed


def test_at_the_backoff_limit_the_pods_go_whatever_the_policy_says() -> None:
    job = make_job(backoffLimit=1, cleanPodPolicy="None")
    plan = reconcile(job, [make_pod(job, restarts=1), make_pod(job, WORKER)], [], NOW)
    assert plan.delete_pods == ["j-master-0", "j-worker-0"]
    assert plan.status["conditions"][-1]["message"] == (
        "Job j has failed because it has reached the specified backoff limit"
    )


def test_only_running_pods_count_and_none_that_is_never_restarted() -> None:
    job = make_job(workers=0, backoffLimit=1)
    waiting = make_pod(job, phase="Pending", restarts=5)
    assert "Failed" not in conditions(reconcile(job, [waiting], [], NOW))
    job = make_job(workers=0, backoffLimit=1, policy="Never")
    assert "Failed" not in conditions(reconcile(job, [make_pod(job, restarts=5)], [], NOW))


def test_the_deadline_is_looked_at_in_time() -> None:
    job = make_job(activeDeadlineSeconds=60)
    plan = reconcile(job, [], [], NOW)
    assert plan.wake_at == NOW + timedelta(seconds=60)
    job = with_status(job, plan)
    plan = reconcile(job, [make_pod(job)], [], NOW + timedelta(seconds=60))
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
def test_the_clean_pod_policy_decides_what_is_left(policy: str | None, deleted: list[str]) -> None:
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


def test_after_a_success_what_still_runs_counts_as_succeeded() -> None:
    job = make_job()
    pods = [make_pod(job, phase="Succeeded"), make_pod(job, WORKER)]
    job = with_status(job, reconcile(job, pods, [], NOW))
    counts = reconcile(job, pods, [], NOW).status["replicaStatuses"][WORKER]
    assert counts["succeeded"] == 1
    assert "active" not in counts


def test_a_finished_job_is_deleted_when_its_time_is_over() -> None:
    job = make_job(workers=0, ttlSecondsAfterFinished=10)
    pods = [make_pod(job, phase="Succeeded")]
    job = with_status(job, reconcile(job, pods, [], NOW))
    plan = reconcile(job, pods, [], NOW)
    assert not plan.delete_job
    assert plan.wake_at == NOW + timedelta(seconds=10)
    assert reconcile(job, pods, [], NOW + timedelta(seconds=10)).delete_job


def test_a_failure_without_a_completion_time_keeps_the_job_for_ever() -> None:
    job = make_job(workers=0, policy="ExitCode", ttlSecondsAfterFinished=0)
    pods = [make_pod(job, phase="Failed", code=1)]
    failed = reconcile(job, pods, [], NOW)
    assert conditions(failed)["Failed"] == "True"
    assert "completionTime" not in failed.status
    later = reconcile(with_status(job, failed), pods, [], NOW + timedelta(days=1))
    assert not later.delete_job


# Suspension, and other managers.


def test_a_suspended_job_has_no_pods_until_it_is_resumed() -> None:
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


def test_a_running_job_that_is_suspended_loses_its_pods_and_has_not_failed() -> None:
    job = make_job()
    pods = [make_pod(job), make_pod(job, WORKER)]
    job = with_status(job, reconcile(job, pods, [], NOW))
    job["spec"]["runPolicy"]["suspend"] = True
    plan = reconcile(job, pods, [], NOW)
    assert plan.delete_pods == ["j-master-0", "j-worker-0"]
    assert conditions(plan) == {"Created": "True", "Running": "False", "Suspended": "True"}


def test_a_job_of_another_manager_and_one_that_is_deleted_are_left_alone() -> None:
    theirs = make_job(managedBy="kueue.x-k8s.io/multikueue")
    assert reconcile(theirs, [], [], NOW) == Plan({})
    deleted = make_job()
    deleted["metadata"]["deletionTimestamp"] = objects.timestamp(NOW)
    assert reconcile(deleted, [], [], NOW) == Plan({})


def test_pods_beyond_the_wanted_number_are_deleted() -> None:
    job = make_job(master=0, workers=1)
    pods = [make_pod(job, WORKER, index) for index in range(3)]
    assert reconcile(job, pods, [], NOW).delete_pods == ["j-worker-1", "j-worker-2"]


def test_a_second_look_at_a_settled_job_changes_nothing() -> None:
    job = make_job()
    pods = [make_pod(job), make_pod(job, WORKER)]
    services = [service(defaulted(job), kind, 0) for kind in (MASTER, WORKER)]
    job = with_status(job, reconcile(job, pods, services, NOW))
    plan = reconcile(job, pods, services, NOW + timedelta(minutes=5))
    assert plan.status == job["status"]
    assert plan == Plan(job["status"])


# Admission.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda job: job["metadata"].update(name="1j"), "a DNS-1035 label must"),
        (lambda job: job["metadata"].update(name="j" * 64), "no more than 63 characters"),
        (lambda job: job["spec"].update(pytorchReplicaSpecs={}), "must be required"),
        (
            lambda job: job["spec"]["pytorchReplicaSpecs"].update(Chief=replica(1)),
            'Unsupported value: "Chief": supported values: "Master", "Worker"',
        ),
        (
            lambda job: job["spec"]["pytorchReplicaSpecs"][MASTER].update(replicas=2),
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
        ),
        (
            lambda job: job["spec"]["pytorchReplicaSpecs"][WORKER].update(replicas=0),
            "must be at least 1",
        ),
        (
            lambda job: _container(job).update(name="main"),
            "must have at least one container with name pytorch",
        ),
        (lambda job: _container(job).update(image=""), "containers[0].image: Required value"),
        (
            lambda job: job["spec"].update(elasticPolicy={"nProcPerNode": 1}, nprocPerNode="2"),
            "must not be used with spec.nprocPerNode",
        ),
        (
            lambda job: (
                job["spec"].update(elasticPolicy={}),
                job["spec"]["pytorchReplicaSpecs"].pop(WORKER),
            ),
            "must be configured if elastic policy is used",
        ),
        (lambda job: job["spec"]["runPolicy"].update(managedBy="me"), 'Unsupported value: "me"'),
    ],
)
def test_the_webhook_refuses_what_the_operator_would_not_take(change: Any, words: str) -> None:
    job = make_job()
    pytorchjob_admission.check(job)
    change(job)
    with pytest.raises(ApiError) as caught:
        pytorchjob_admission.check(job)
    assert caught.value.code == 403
    assert words in caught.value.message
    assert pytorchjob_admission.WEBHOOK in caught.value.message


def _container(job: Object) -> Object:
    found: Object = job["spec"]["pytorchReplicaSpecs"][MASTER]["template"]["spec"]["containers"][0]
    return found


def test_the_port_of_the_master_is_the_one_that_its_container_declares() -> None:
    job = make_job()
    _container(job)["ports"] = [{"name": "pytorchjob-port", "containerPort": 29500}]
    assert environment(pod(defaulted(job), WORKER, 0))["MASTER_PORT"] == "29500"
    assert pytorchjob_pods.PORT == 23456
