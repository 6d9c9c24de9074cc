"""A PyTorchJob of each scheduler and placement: what it has more than one without."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import (
    COSCHEDULING_POD_GROUP,
    STEP_ID_LABEL,
    VOLCANO_POD_GROUP,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.gang import pod_group
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

Check = Callable[[str, dict[str, Any]], None]
LABELS = {STEP_ID_LABEL: "s-1"}
MATCHED = {"labelSelector": {"matchLabels": LABELS}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@pytest.fixture
def job(check_crd: Check) -> Callable[..., dict[str, Any]]:
    def build(**inputs: Any) -> dict[str, Any]:
        parsed = parse_inputs(**{"image": "train:1", "num_nodes": 4, **inputs})
        made = manifest(parsed, job_name="j-1", labels=LABELS, annotations={}, owner=None)
        check_crd("pytorchjobs", made)
        return made

    return build


def pods_of(made: dict[str, Any]) -> dict[str, Any]:
    templates = [each["template"] for each in made["spec"]["pytorchReplicaSpecs"].values()]
    assert all(template["spec"] == templates[0]["spec"] for template in templates)
    found: dict[str, Any] = templates[-1]
    return found


def more(made: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """What a job has that another has not, by where it is."""

    def added(new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in new.items() if old.get(key) != value}

    pods, old = pods_of(made), pods_of(plain)
    parts = {
        "labels": added(made["metadata"]["labels"], plain["metadata"]["labels"]),
        "annotations": added(made["metadata"]["annotations"], plain["metadata"]["annotations"]),
        "policy": added(made["spec"]["runPolicy"], plain["spec"]["runPolicy"]),
        "pod labels": added(pods["metadata"]["labels"], old["metadata"]["labels"]),
        "pod annotations": added(pods["metadata"]["annotations"], old["metadata"]["annotations"]),
        "spec": added(pods["spec"], old["spec"]),
    }
    return {name: part for name, part in parts.items() if part}


GOLDEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kueue": (
        {"scheduler": "kueue", "queue": "team-a", "workload_priority_class": "high"},
        {
            "labels": {
                "kueue.x-k8s.io/queue-name": "team-a",
                "kueue.x-k8s.io/priority-class": "high",
            }
        },
    ),
    "volcano": (
        {"scheduler": "volcano", "queue": "team-a", "priority_class": "high"},
        {
            "policy": {
                "schedulingPolicy": {
                    "minAvailable": 4,
                    "queue": "team-a",
                    "priorityClass": "high",
                    "minResources": {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "32"},
                }
            },
            "pod annotations": {
                "scheduling.volcano.sh/queue-name": "team-a",
                "scheduling.k8s.io/group-name": "j-1",
            },
            "spec": {"schedulerName": "volcano", "priorityClassName": "high"},
        },
    ),
    "volcano without a gang": (
        {"scheduler": "volcano", "gang": False},
        {
            "policy": {"schedulingPolicy": {"minAvailable": 1}},
            "spec": {"schedulerName": "volcano"},
        },
    ),
    "coscheduling": (
        {"scheduler": "coscheduling", "min_member": 3, "schedule_timeout": 60},
        {
            "policy": {
                "schedulingPolicy": {
                    "minAvailable": 3,
                    "scheduleTimeoutSeconds": 60,
                    "minResources": {"cpu": "6", "memory": "12Gi", "nvidia.com/gpu": "24"},
                }
            },
            "pod labels": {"scheduling.x-k8s.io/pod-group": "j-1"},
            "spec": {"schedulerName": "scheduler-plugins-scheduler"},
        },
    ),
    "kai": (
        {"scheduler": "kai", "queue": "team-a"},
        {
            "labels": {"kai.scheduler/queue": "team-a"},
            "pod labels": {"kai.scheduler/queue": "team-a"},
            "spec": {"schedulerName": "kai-scheduler"},
        },
    ),
    "kai with a part of the pods": (
        {"scheduler": "kai", "min_member": 2},
        {
            "policy": {"schedulingPolicy": {"minAvailable": 2}},
            "spec": {"schedulerName": "kai-scheduler"},
        },
    ),
    "yunikorn": (
        {"scheduler": "yunikorn", "queue": "root.team-a", "schedule_timeout": 120},
        {
            "pod labels": {
                "yunikorn.apache.org/app-id": "j-1",
                "yunikorn.apache.org/queue": "root.team-a",
            },
            "pod annotations": {
                "yunikorn.apache.org/schedulingPolicyParameters": (
                    "placeholderTimeoutInSeconds=120 gangSchedulingStyle=Hard"
                ),
                "yunikorn.apache.org/task-group-name": "worker",
                "yunikorn.apache.org/task-groups": (
                    '[{"name":"master","minMember":1,"minResource":{"cpu":"2","memory":"4Gi",'
                    '"nvidia.com/gpu":"8"},"labels":{"kfp-pytorch/step-id":"s-1"}},'
                    '{"name":"worker","minMember":3,"minResource":{"cpu":"2","memory":"4Gi",'
                    '"nvidia.com/gpu":"8"},"labels":{"kfp-pytorch/step-id":"s-1"}}]'
                ),
            },
            "spec": {"schedulerName": "yunikorn"},
        },
    ),
    "a priority alone": ({"priority_class": "high"}, {"spec": {"priorityClassName": "high"}}),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_scheduler_gets_what_it_reads_and_nothing_else_changes(job: Any, name: str) -> None:
    scheduling, expected = GOLDEN[name]
    common = {"cpu": "2", "memory": "4Gi", "gpus_per_node": 8}
    assert more(job(scheduling=scheduling, **common), job(**common)) == expected


def test_volcano_and_coscheduling_need_a_pod_group_and_no_other_does() -> None:
    def needed(**scheduling: Any) -> Any:
        return pod_group(parse_inputs(image="i", scheduling=scheduling).scheduling, 4, {"cpu": "8"})

    volcano = needed(scheduler="volcano", queue="q", priority_class="p")
    assert volcano == (
        VOLCANO_POD_GROUP,
        {"minMember": 4, "minResources": {"cpu": "8"}, "queue": "q", "priorityClassName": "p"},
    )
    assert needed(scheduler="coscheduling", schedule_timeout=9) == (
        COSCHEDULING_POD_GROUP,
        {"minMember": 4, "minResources": {"cpu": "8"}, "scheduleTimeoutSeconds": 9},
    )
    assert needed(scheduler="volcano", gang=False) is None
    assert needed(scheduler="kai") is None
    assert needed(scheduler="kueue", queue="q") is None


def test_pods_in_one_rack_spread_over_nodes_beside_an_affinity_of_one_s_own(job: Any) -> None:
    own = {"podAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": {}}]}}
    placement = {"same": "rack", "spread": {"domain": "node", "required": True}}
    affinity = pods_of(job(placement=placement, affinity=own))["spec"]["affinity"]
    rack = {**MATCHED, "topologyKey": "topology.kubernetes.io/rack"}
    assert affinity == {
        "podAffinity": {REQUIRED: [*own["podAffinity"][REQUIRED], rack]},
        "podAntiAffinity": {REQUIRED: [{**MATCHED, "topologyKey": "kubernetes.io/hostname"}]},
    }


def test_packed_pods_prefer_nodes_with_others_of_the_job(job: Any) -> None:
    placement = {"same": {"domain": "zone", "required": False}, "pack": True}
    affinity = pods_of(job(placement=placement))["spec"]["affinity"]
    keys = ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    terms = [{"weight": 100, "podAffinityTerm": {**MATCHED, "topologyKey": key}} for key in keys]
    assert affinity == {"podAffinity": {PREFERRED: terms}}


def test_kueue_and_kai_keep_pods_in_one_domain_themselves_where_they_are_asked(job: Any) -> None:
    same = {"same": "rack"}
    kueue = {"scheduler": "kueue", "queue": "q", "topology_aware": True}
    rack = "topology.kubernetes.io/rack"
    assert more(job(scheduling=kueue, placement=same), job())["pod annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": rack,
        "kueue.x-k8s.io/podset-group-name": "all",
    }
    assert "affinity" not in pods_of(job(scheduling=kueue, placement=same))["spec"]
    alone = job(scheduling=kueue, placement=same, num_nodes=1)
    assert "kueue.x-k8s.io/podset-group-name" not in pods_of(alone)["metadata"]["annotations"]
    kai = {"scheduler": "kai", "topology": "cluster"}
    preferred = {"same": {"domain": "rack", "required": False}}
    assert job(scheduling=kai, placement=preferred)["metadata"]["annotations"] == {
        "kai.scheduler/topology": "cluster",
        "kai.scheduler/topology-preferred-placement": rack,
    }


def test_rdma_locks_memory_unless_that_is_not_wanted(job: Any) -> None:
    def capabilities(**rdma: Any) -> Any:
        pods = pods_of(job(placement={"rdma": {"count": 1, **rdma}}))
        return pods["spec"]["containers"][0]["securityContext"]["capabilities"]

    assert capabilities() == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert capabilities(ipc_lock=False) == {"drop": ["ALL"]}


def test_with_the_node_s_ipc_no_memory_is_mounted_over_its_shared_memory(job: Any) -> None:
    spec = pods_of(job(placement={"host_ipc": True}))["spec"]
    assert spec["hostIPC"] is True
    mounts = [each["mountPath"] for each in spec["containers"][0]["volumeMounts"]]
    assert "/dev/shm" not in mounts


def test_yunikorn_reserves_for_all_containers_and_where_the_pods_may_run(job: Any) -> None:
    sidecar = {"name": "s", "image": "i", "resources": {"requests": {"cpu": "500m"}}}
    made = job(
        scheduling={"scheduler": "yunikorn"},
        placement={"same": "zone"},
        cpu="2",
        node_selector={"pool": "a"},
        tolerations=[{"operator": "Exists"}],
        pod_template_patch={"spec": {"containers": [sidecar]}},
    )
    pods = pods_of(made)
    _, group = json.loads(pods["metadata"]["annotations"]["yunikorn.apache.org/task-groups"])
    assert group["minResource"] == {"cpu": "2500m"}
    assert group["labels"] == LABELS
    for name in ("affinity", "nodeSelector", "tolerations"):
        assert group[name] == pods["spec"][name]


def test_a_gang_of_a_part_of_the_pods_begins_with_the_first_role(job: Any) -> None:
    made = job(scheduling={"scheduler": "yunikorn", "min_member": 1}, cpu="1")
    roles = {
        role: each["template"]["metadata"]["annotations"]
        for role, each in made["spec"]["pytorchReplicaSpecs"].items()
    }
    (group,) = json.loads(roles["Master"]["yunikorn.apache.org/task-groups"])
    assert (group["name"], group["minMember"]) == ("master", 1)
    assert "yunikorn.apache.org/task-group-name" not in roles["Worker"]


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"scheduling": {"scheduler": "volcano", "min_member": 5}}, "the job starts with 4 pods"),
        ({"scheduling": {"scheduler": "yunikorn"}}, "set cpu and memory, or gang to false"),
        (
            {"scheduling": {"scheduler": "kueue", "queue": "q", "topology_aware": True}},
            "topology_aware is set, and placement has no same",
        ),
        (
            {"scheduling": {"scheduler": "kai", "topology": "t"}, "placement": {"pack": True}},
            "topology is set, and placement has no same",
        ),
        (
            {
                "scheduling": {"scheduler": "volcano"},
                "labels": {"kueue.x-k8s.io/queue-name": "q"},
            },
            "for volcano (by the input scheduling) and for kueue (by the job's label 'kueue.x",
        ),
        (
            {
                "scheduling": {"scheduler": "kueue", "queue": "a"},
                "labels": {"kueue.x-k8s.io/queue-name": "b"},
            },
            "with 'b', and scheduling or placement sets it to 'a'",
        ),
        (
            {
                "scheduling": {"scheduler": "kai"},
                "pod_template_patch": {
                    "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "q"}}
                },
            },
            "and for volcano (by the pods' annotation 'scheduling.volcano.sh/queue-name')",
        ),
        (
            {
                "scheduling": {"scheduler": "kai"},
                "pod_template_patch": {"spec": {"schedulerName": "volcano"}},
            },
            "schedulerName is 'volcano', and scheduling",
        ),
        (
            {
                "scheduling": {"priority_class": "a"},
                "pod_template_patch": {"spec": {"priorityClassName": "b"}},
            },
            "priorityClassName is 'b'",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_before_there_is_a_job(
    job: Any, inputs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        job(**inputs)


def test_a_label_of_the_same_queue_is_no_contradiction(job: Any) -> None:
    label = {"kueue.x-k8s.io/queue-name": "q"}
    made = job(scheduling={"scheduler": "kueue", "queue": "q"}, labels=label)
    assert made["metadata"]["labels"] == {**LABELS, **label}


def test_the_scheduler_is_part_of_what_the_job_is_made_of() -> None:
    def spec(**scheduling: Any) -> Any:
        return parse_inputs(image="i", scheduling=scheduling).spec()

    assert spec(scheduler="kueue", queue="a") != spec(scheduler="kueue", queue="b")
    assert "scheduling" not in spec()
