"""The pods of a PyTorchJob, and the jobs that the operator's webhook refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.local.apiserver.errors import ApiError
from kfp_pytorch.local.controllers.pytorchjob import pods, webhook
from kfp_pytorch.local.controllers.pytorchjob.pods import MASTER, WORKER, defaulted, pod, service

Object = dict[str, Any]
Make = Callable[..., Object]


def environment(made: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in made["spec"]["containers"][0]["env"]}


def test_a_pod_has_the_operators_name_labels_owner_and_policy(make_job: Make) -> None:
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
    make_job: Make, master: int, replica_type: str, index: int, role: str | None
) -> None:
    made = pod(defaulted(make_job(master=master, workers=2)), replica_type, index)
    assert made["metadata"]["labels"].get("training.kubeflow.org/job-role") == role


@pytest.mark.parametrize(("replica_type", "index", "rank"), [(MASTER, 0, 0), (WORKER, 2, 3)])
def test_with_a_master_the_variables_are_the_operators(
    make_job: Make, replica_type: str, index: int, rank: int
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
def test_auto_counts_as_one_process_in_the_world_size(
    make_job: Make, nproc: str, size: str
) -> None:
    made = pod(defaulted(make_job(nprocPerNode=nproc)), MASTER, 0)
    assert environment(made)["WORLD_SIZE"] == size


def test_with_workers_only_no_variable_names_a_master(make_job: Make) -> None:
    found = environment(pod(defaulted(make_job(master=0, workers=2)), WORKER, 1))
    assert found == {
        "MINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2",
    }


def test_an_elastic_job_meets_at_its_first_worker(make_job: Make) -> None:
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


def test_a_worker_first_waits_for_the_name_of_the_master(make_job: Make) -> None:
    job = defaulted(make_job())
    assert "initContainers" not in pod(job, MASTER, 0)["spec"]
    (first,) = pod(job, WORKER, 0)["spec"]["initContainers"]
    assert first["name"] == "init-pytorch"
    assert "nslookup j-master-0" in first["command"][2]


def test_each_pod_has_a_headless_service(make_job: Make) -> None:
    made = service(defaulted(make_job()), MASTER, 0)
    assert made["metadata"]["name"] == "j-master-0"
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]


# Admission.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: job["metadata"].update(name="1j"), "a DNS-1035 label must"),
        (lambda job: job["metadata"].update(name="j" * 64), "no more than 63 characters"),
        (lambda job: job["spec"].update(pytorchReplicaSpecs={}), "must be required"),
        (
            lambda job: job["spec"]["pytorchReplicaSpecs"].update(Chief={"replicas": 1}),
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
def test_the_webhook_refuses_an_invalid_job(make_job: Make, change: Any, message: str) -> None:
    job = make_job()
    webhook.check(job)
    change(job)
    with pytest.raises(ApiError) as caught:
        webhook.check(job)
    assert caught.value.code == 403
    assert message in caught.value.message
    assert webhook.WEBHOOK in caught.value.message


def _container(job: Object) -> Object:
    found: Object = job["spec"]["pytorchReplicaSpecs"][MASTER]["template"]["spec"]["containers"][0]
    return found


def test_the_port_of_the_master_is_the_one_that_its_container_declares(make_job: Make) -> None:
    job = make_job()
    _container(job)["ports"] = [{"name": "pytorchjob-port", "containerPort": 29500}]
    assert environment(pod(defaulted(job), WORKER, 0))["MASTER_PORT"] == "29500"
    assert pods.PORT == 23456
