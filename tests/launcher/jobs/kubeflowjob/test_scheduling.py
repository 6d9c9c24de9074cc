"""Jobs of each kind with each scheduler, and what roles that do not train keep of a placement."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.inputs.scheduling.scheduler import SCHEDULER_NAMES, SCHEDULERS
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS
from kfp_pytorch.launcher.jobs.registry import kind_of

Check = Callable[[str, dict[str, Any]], None]
GROUPS = "yunikorn.apache.org/task-groups"


def build(**inputs: Any) -> dict[str, Any]:
    kind = kind_of("kubeflow_job", inputs)
    return kind.build(
        kind.parse_inputs(**{"image": "train:1"} | inputs),
        job_name="job-1",
        labels={"kfp-pytorch/step-id": "s"},
        annotations={},
        owner=None,
    )


def templates(job: dict[str, Any]) -> dict[str, Any]:
    specs = FRAMEWORKS[job["kind"]].roles.specs(job)
    return {role: spec["template"] for role, spec in specs.items()}


@pytest.mark.parametrize("kind", FRAMEWORKS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_kind_has_every_scheduler(kind: str, scheduler: str, check_crd: Check) -> None:
    scheduling: dict[str, Any] = {"scheduler": scheduler}
    scheduling |= {"queue": "q"} if scheduler == "kueue" else {}
    scheduling |= {"gang": False} if (kind, scheduler) == ("PaddleJob", "kai") else {}
    processes = {"nproc_per_node": "1"} if kind == "MPIJob" else {}
    job = build(kind=kind, num_nodes=2, cpu="1", scheduling=scheduling, **processes)
    check_crd(f"{kind.lower()}s", job)
    names = {each["spec"].get("schedulerName", "") for each in templates(job).values()}
    assert names == {SCHEDULER_NAMES.get(scheduler, "")}
    policy = job["spec"]["runPolicy"].get("schedulingPolicy", {})
    if scheduler in ("volcano", "coscheduling"):
        roles = FRAMEWORKS[kind].roles.specs(job)
        assert policy["minAvailable"] == sum(spec["replicas"] for spec in roles.values())


def test_yunikorn_reserves_for_each_role_what_its_pods_request() -> None:
    replicas = {"Worker": 2, "PS": {"replicas": 1, "memory": "8Gi"}}
    common = {"gpus_per_node": 1, "memory": "16Gi", "scheduling": {"scheduler": "yunikorn"}}
    pods = templates(build(kind="TFJob", replicas=replicas, **common))
    written = {each["metadata"]["annotations"][GROUPS] for each in pods.values()}
    groups = {group["name"]: group for group in json.loads(written.pop())}
    assert written == set()
    assert groups["worker"]["minResource"] == {"memory": "16Gi", "nvidia.com/gpu": "1"}
    assert groups["ps"]["minResource"] == {"memory": "8Gi"}
    assert [groups[name]["minMember"] for name in ("worker", "ps")] == [2, 1]


def test_a_pod_group_reserves_what_the_first_pods_of_the_gang_request(check_crd: Check) -> None:
    def reserved(scheduler: str, **scheduling: Any) -> Any:
        job = build(
            kind="TFJob",
            replicas={"Chief": 1, "Worker": {"replicas": 3, "cpu": "1500m"}, "PS": {"cpu": "1"}},
            gpus_per_node=2,
            memory="16Gi",
            scheduling={"scheduler": scheduler, **scheduling},
        )
        check_crd("tfjobs", job)
        return job["spec"]["runPolicy"]["schedulingPolicy"].get("minResources")

    all_pods = {"memory": "80Gi", "nvidia.com/gpu": "8", "cpu": "5500m"}
    assert reserved("volcano") == all_pods
    some = {"memory": "32Gi", "nvidia.com/gpu": "4", "cpu": "1500m"}
    assert reserved("coscheduling", min_member=2) == some
    assert reserved("volcano", gang=False) is None
    assert reserved("kai", min_member=2) is None


def test_pods_that_request_nothing_need_no_place_kept() -> None:
    job = build(
        kind="MPIJob",
        num_nodes=2,
        nproc_per_node="1",
        cpu="2",
        scheduling={"scheduler": "yunikorn"},
    )
    pods = templates(job)
    (group,) = json.loads(pods["Worker"]["metadata"]["annotations"][GROUPS])
    assert (group["name"], group["minMember"]) == ("worker", 2)
    assert GROUPS not in pods["Launcher"]["metadata"]["annotations"]


def test_a_role_that_does_not_train_asks_for_no_gpu_node() -> None:
    placement = {"gpus": 8, "gpu_products": ["H100"], "rdma": {"count": 1}, "same": "rack"}
    pods = templates(build(kind="TFJob", replicas={"Worker": 1, "PS": 1}, placement=placement))
    worker, server = pods["Worker"]["spec"], pods["PS"]["spec"]
    assert set(worker["affinity"]) == {"nodeAffinity", "podAffinity"}
    assert set(server["affinity"]) == {"podAffinity"}
    assert "resources" not in server["containers"][0]
    capabilities = [each["containers"][0]["securityContext"] for each in (worker, server)]
    assert [each["capabilities"].get("add") for each in capabilities] == [["IPC_LOCK"], None]


def test_a_tfjob_may_succeed_only_when_all_of_its_workers_do(check_crd: Check) -> None:
    job = build(kind="TFJob", num_nodes=2, success_policy="AllWorkers")
    check_crd("tfjobs", job)
    assert job["spec"]["successPolicy"] == "AllWorkers"
