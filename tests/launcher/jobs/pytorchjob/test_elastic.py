"""Elastic PyTorchJobs: workers only, whose number may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.runtime.identity import job_name
from kfp_pytorch.local.controllers.pytorchjob import pods, webhook

Check = Callable[[str, dict[str, Any]], None]
RANGE = {"min_nodes": 1, "max_nodes": 4}


def job(elastic: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    parsed = parse_inputs(image="train:1", elastic=elastic, **inputs)
    return PYTORCH_JOB.build(parsed, job_name="j-1", labels={}, annotations={}, owner=None)


def env(made: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """What the operator and we tell a worker."""
    pod = pods.pod(
        pods.defaulted(made | {"metadata": {**made["metadata"], "uid": "1"}}), "Worker", index
    )
    (container,) = pod["spec"]["containers"]
    return {each["name"]: each.get("value") or each.get("valueFrom") for each in container["env"]}


def test_the_least_that_can_be_said_makes_workers_that_meet_at_the_first(check_crd: Check) -> None:
    made = job(RANGE, num_nodes=2)
    check_crd("pytorchjobs", made)
    webhook.check(made)
    assert made["spec"]["elasticPolicy"] == {
        "minReplicas": 1,
        "maxReplicas": 4,
        "maxRestarts": 10,
        "rdzvBackend": "c10d",
        "rdzvId": "j-1",
    }
    replicas = made["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in replicas.items()} == {"Worker": 2}
    told = env(made)
    assert told["PET_RDZV_ENDPOINT"] == "j-1-worker-0:23456"
    assert (told["PET_NNODES"], told["PET_MAX_RESTARTS"]) == ("1:4", "10")


def test_all_that_can_be_said_is_in_the_policy(check_crd: Check) -> None:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    metric = {"type": "Resource", "resource": cpu}
    made = job(
        {
            **RANGE,
            "max_restarts": 0,
            "rdzv_backend": "etcd-v2",
            "rdzv_host": "etcd.team.svc",
            "rdzv_id": "mine",
            "rdzv_conf": {"timeout": 600.0, "last_call_timeout": 5},
            "metrics": [metric],
        },
        num_nodes=2.0,
    )
    check_crd("pytorchjobs", made)
    assert made["spec"]["elasticPolicy"] == {
        "minReplicas": 1,
        "maxReplicas": 4,
        "maxRestarts": 0,
        "rdzvBackend": "etcd-v2",
        "rdzvHost": "etcd.team.svc",
        "rdzvPort": 2379,
        "rdzvId": "mine",
        "rdzvConf": [
            {"key": "timeout", "value": "600"},
            {"key": "last_call_timeout", "value": "5"},
        ],
        "metrics": [metric],
    }
    assert env(made)["PET_RDZV_CONF"] == "timeout=600,last_call_timeout=5"


def test_an_elastic_job_runs_with_its_least_and_is_named_for_its_most() -> None:
    inputs = parse_inputs(image="i", elastic={"min_nodes": 2, "max_nodes": 101}, num_nodes=3)
    made = job({"min_nodes": 2, "max_nodes": 101}, num_nodes=3)
    assert PYTORCH_JOB.expected_pods(made) == 2
    assert PYTORCH_JOB.first_pod(made, []) == "j-1-worker-0"
    suffix = PYTORCH_JOB.longest_suffix(inputs)
    assert suffix == "-worker-100"
    assert len(job_name("n" * 80, "s3://a/b", suffix) + suffix) == 63
    # A crash counts once a node, so the limit is for as many as there may be.
    assert inputs.backoff_limit == 303


def test_one_node_may_be_elastic() -> None:
    made = job({"max_nodes": 1})
    assert made["spec"]["elasticPolicy"]["minReplicas"] == 1
    assert list(made["spec"]["pytorchReplicaSpecs"]) == ["Worker"]


def test_plain_ddp_on_workers_of_fixed_number_is_told_what_a_master_would_tell() -> None:
    made = job({"min_nodes": 2, "max_nodes": 2}, num_nodes=2)
    told = env(made, index=1)
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("j-1-worker-0", "23456")
    assert told["WORLD_SIZE"] == "2"
    assert told["RANK"] == {
        "fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}
    }


@pytest.mark.parametrize(
    ("elastic", "inputs"),
    [
        (RANGE, {"num_nodes": 2}),
        ({"max_nodes": 2}, {"num_nodes": 2}),
        ({"max_nodes": 1}, {"nproc_per_node": 2}),
    ],
)
def test_what_would_not_stay_true_is_not_told(
    elastic: dict[str, Any], inputs: dict[str, Any]
) -> None:
    told = env(job(elastic, **inputs))
    assert {"MASTER_ADDR", "WORLD_SIZE", "RANK"} & told.keys() == set()


@pytest.mark.parametrize(
    ("inputs", "processes"),
    [
        ({}, "1"),
        ({"gpus_per_node": 4}, "4"),
        ({"gpus_per_node": 4, "nproc_per_node": "2"}, "2"),
        ({"gpus_per_node": 4, "nproc_per_node": "gpu"}, "gpu"),
        ({"nproc_per_node": "auto"}, "auto"),
    ],
)
def test_the_processes_of_a_node_are_its_gpus_unless_it_says_so(
    inputs: dict[str, Any], processes: str
) -> None:
    made = job(RANGE, **inputs)
    webhook.check(made)
    assert env(made)["PET_NPROC_PER_NODE"] == processes


@pytest.mark.parametrize(
    ("elastic", "inputs", "words"),
    [
        ({"min_nodes": 3, "max_nodes": 2}, {}, "min_nodes is 3, more than max_nodes, 2"),
        ({"rdzv_conf": {"": "x"}}, {}, "the name of an option is empty"),
        (
            {"min_nodes": 1},
            {"env": {"PET_RDZV_ENDPOINT": "x"}},
            "PET_RDZV_ENDPOINT: the operator does, from elastic",
        ),
        (
            {"min_nodes": 1},
            {
                "pod_template_patch": {
                    "spec": {"containers": [{"name": "pytorch", "env": [{"name": "PET_RDZV_ID"}]}]}
                }
            },
            "pod_template_patch may not set PET_RDZV_ID: the operator does, from elastic",
        ),
        ({"min_nodes": 0}, {}, "elastic.min_nodes is 0; it must be from 1"),
        ({"max_nodes": 0}, {}, "elastic.max_nodes is 0; it must be from 1"),
        ({"min_nodes": 2, "max_nodes": 4}, {}, "num_nodes is 1, and elastic allows 2 to 4"),
        ({"max_nodes": 2}, {"num_nodes": 3}, "num_nodes is 3, and elastic allows 1 to 2"),
        ({"rdzv_backend": "static"}, {}, "must be one of c10d, etcd-v2, etcd"),
        ({"rdzv_backend": "etcd"}, {}, "rdzv_host is not set; give the name of the etcd"),
        ({"rdzv_conf": {"a": "1,b=2"}}, {}, "so none may have a blank"),
        ({"rdzv_port": 70000}, {}, "must be from 0 to 65535"),
        ({"standalone": True}, {}, "torchrun fails to read"),
        ({"master": 1}, {}, "unknown field 'master'; it may have min_nodes"),
        ({"metrics": [{"type": "Cpu"}]}, {}, "must be one of Resource"),
        ({"metrics": [{"type": "Resource"}]}, {}, "is no metric of a HorizontalPodAutoscaler"),
        (
            {"max_nodes": 1, "metrics": [{"type": "Resource", "resource": {}}]},
            {},
            "leave an autoscaler nothing to change",
        ),
        (RANGE, {"nproc_per_node": "gpu"}, "the pods have no GPU"),
        (
            {"max_nodes": 2, "metrics": [{"type": "Resource", "resource": {}}]},
            {"scheduling": {"scheduler": "kueue", "queue": "a"}},
            "waits in Kueue's queue 'a', which admits a fixed number of pods",
        ),
        (
            {"max_nodes": 2, "metrics": [{"type": "Resource", "resource": {}}]},
            {"labels": {"kueue.x-k8s.io/queue-name": "b"}},
            "waits in Kueue's queue 'b'",
        ),
        (
            {"min_nodes": 2, "max_nodes": 6},
            {"num_nodes": 4, "scheduling": {"scheduler": "volcano", "min_member": 1}},
            "min_member is 1, less than elastic.min_nodes, 2",
        ),
        (
            {"min_nodes": 2, "max_nodes": 6},
            {"num_nodes": 4, "scheduling": {"scheduler": "volcano", "min_member": 5}},
            "min_member is 5 and the job starts with 4 pods",
        ),
        (
            {"max_nodes": 4, "metrics": [{"type": "Resource", "resource": {}}]},
            {"num_nodes": 4, "scheduling": {"scheduler": "yunikorn", "min_member": 2}},
            "by elastic.metrics the job may come to have min_nodes, 1",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    elastic: dict[str, Any], inputs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        job(elastic, **inputs)
    assert words in caught.value.message


def test_the_gang_of_an_elastic_job_is_its_least_or_more(check_crd: Check) -> None:
    def policy(**scheduling: Any) -> Any:
        elastic = {"min_nodes": 2, "max_nodes": 6}
        given = {"scheduler": "coscheduling", **scheduling}
        made = job(elastic, num_nodes=4, cpu="2", memory="1Gi", scheduling=given)
        check_crd("pytorchjobs", made)
        return made["spec"]["runPolicy"]["schedulingPolicy"]

    assert policy() == {"minAvailable": 2, "minResources": {"cpu": "4", "memory": "2Gi"}}
    assert policy(min_member=4)["minAvailable"] == 4


def test_null_leaves_an_option_at_its_default() -> None:
    nothing = dict.fromkeys(("min_nodes", "max_nodes", "max_restarts", "rdzv_id", "rdzv_conf"))
    unset = parse_inputs(image="i", output_uri="pvc://c", elastic={"rdzv_port": 0, **nothing})
    given = parse_inputs(image="i", output_uri="pvc://c", elastic={"min_nodes": 1})
    assert unset.elastic == given.elastic


def test_the_hash_of_a_job_changes_with_its_policy_and_not_without_one() -> None:
    usual, unset, elastic = (
        parse_inputs(image="i", **given).spec()
        for given in ({}, {"elastic": {}}, {"elastic": RANGE})
    )
    assert usual == unset
    assert elastic != usual
    assert parse_inputs(image="i", elastic=RANGE | {"max_restarts": 1}).spec() != elastic
