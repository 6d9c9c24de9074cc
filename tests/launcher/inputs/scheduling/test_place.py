"""What `placement` may say, what it means for other inputs, and what is refused of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.merging import node_affinity
from kfp_pytorch.launcher.inputs.scheduling.place import Domain, Placement, read
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def parsed(placement: Any, **inputs: Any) -> Any:
    return parse_inputs(**{"image": "i", "placement": placement} | inputs)


def test_unset_asks_for_nothing_and_changes_no_job() -> None:
    assert read("placement", {}) == Placement()
    assert not Placement()
    assert parsed({}).spec() == parse_inputs(image="i").spec()


def test_gpus_are_the_ones_of_the_other_inputs() -> None:
    whole = parsed({"gpus": 8.0})
    assert whole.resources == {"limits": {"nvidia.com/gpu": "8"}}
    assert (whole.gpus, whole.nproc_per_node) == (8, "8")
    assert parsed({"gpus": 8}, gpus_per_node=8).gpus == 8
    assert parsed({"gpu_products": ["A"]}, gpus_per_node=2).gpus == 2
    other = parsed({"gpus": 4, "gpu_resource": "amd.com/gpu"})
    assert other.resources == {"limits": {"amd.com/gpu": "4"}}
    task = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    assert parsed({"gpus": 2}, task_config=task).gpus == 2


@pytest.mark.parametrize(
    ("profile", "resource"),
    [
        ("3g.20gb", "nvidia.com/mig-3g.20gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
    ],
)
def test_a_mig_profile_is_one_device_and_one_process(profile: str, resource: str) -> None:
    found = parsed({"mig": profile})
    assert found.resources == {"limits": {resource: "1"}}
    assert (found.gpus, found.nproc_per_node) == (1, "1")


def test_a_product_is_demanded_of_every_node_that_the_affinity_allows() -> None:
    demand = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["H100", "H200"]}
    asked = {"gpus": 8, "gpu_products": ["H100", "H200"]}
    placement = parsed(asked).placement
    alone = node_affinity(placement, {})["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert alone == [{"matchExpressions": [demand]}]
    own = {"key": "zone", "operator": "In", "values": ["a"]}
    affinity: dict[str, Any] = {
        "nodeAffinity": {
            REQUIRED: {
                "nodeSelectorTerms": [
                    {"matchExpressions": [own]},
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                ]
            }
        }
    }
    terms = node_affinity(placement, affinity)["nodeAffinity"][REQUIRED]
    assert [term["matchExpressions"] for term in terms["nodeSelectorTerms"]] == [
        [own, demand],
        [demand],
    ]
    assert "matchFields" in terms["nodeSelectorTerms"][1]
    given = affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert given[0] == {"matchExpressions": [own]}


def test_rdma_devices_are_no_accelerators_and_nccl_may_not_fall_back_to_tcp() -> None:
    found = parsed({"gpus": 8, "rdma": {"count": 2, "hca": "mlx5", "interface": "eth0"}})
    limits = {"nvidia.com/gpu": "8", "rdma/rdma_shared_device_a": "2"}
    assert found.resources == {"limits": limits}
    assert (found.gpus, found.nproc_per_node) == (8, "8")
    assert {each["name"]: each["value"] for each in found.env} == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "mlx5",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    own = parsed({"rdma": {"hca": "mlx5"}}, env={"NCCL_NET": "Socket"})
    assert {each["name"]: each["value"] for each in own.env}["NCCL_NET"] == "Socket"
    assert own.gpus == 0
    efa = parsed({"rdma": {"resource": "vpc.amazonaws.com/efa", "count": 4}})
    assert [each["name"] for each in efa.env] == ["FI_PROVIDER"]


def test_a_domain_is_known_by_its_name_or_its_label() -> None:
    assert read("p", {"same": "nvlink"}).same == Domain("nvidia.com/gpu.clique", True)
    label = {"domain": "cloud.google.com/gce-topology-block", "required": False}
    assert read("p", {"same": label}).same == Domain("cloud.google.com/gce-topology-block", False)
    assert read("p", {"spread": "node"}).spread == Domain("kubernetes.io/hostname", False)


def test_tolerations_come_to_those_of_the_input() -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    other = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
    found = parsed({"tolerations": [taint]}, tolerations=[other])
    assert found.tolerations == (taint, other)


def test_cpus_of_their_own_need_whole_ones_and_memory() -> None:
    assert parsed({"cpu_pinning": True}, cpu="8", memory="32Gi").placement.cpu_pinning


@pytest.mark.parametrize(
    ("asked", "inputs", "said"),
    [
        (8, {}, "write an object, such as gpus(8)"),
        ({"gpu": 8}, {}, "unknown field 'gpu'"),
        ({"gpus": -1}, {}, "gpus is -1"),
        ({"gpus": 8, "mig": "3g.20gb"}, {}, "one or the other"),
        ({"mig": "3g20gb"}, {}, "written as 3g.20gb"),
        (
            {"same": "zone", "spread": {"domain": "region", "required": True}},
            {},
            "the second pod would never start",
        ),
        ({"mig": "3g.20gb"}, {"gpus_per_node": 2}, "gpus_per_node is 2, and placement has the MIG"),
        ({"mig": "3g.20gb"}, {"gpu_resource": "amd.com/gpu"}, "gpu_resource is 'amd.com/gpu'"),
        ({"mig": "3g.20gb"}, {"nproc_per_node": 2}, "CUDA gives a process one"),
        ({"gpus": 8}, {"gpus_per_node": 4}, "gpus_per_node is 4 and placement.gpus is 8"),
        ({"gpus": 1, "gpu_resource": "a.b/c"}, {"gpu_resource": "x.y/z"}, "give it once"),
        ({"gpu_products": ["H100"]}, {}, "the job has no GPU"),
        ({"gpu_products": ["H 100"], "gpus": 1}, {}, "gpu_products[0] is 'H 100'"),
        (
            {"gpus": 1, "gpu_resource": "amd.com/gpu", "gpu_products": ["MI300X"]},
            {},
            "told by the label nvidia.com/gpu.product",
        ),
        ({"same": "building"}, {}, "same.domain is 'building'; it must be one of node, zone"),
        ({"same": "zone", "spread": "zone"}, {}, "pods cannot be in one and in several"),
        ({"pack": True, "spread": "node"}, {}, "which are the opposite"),
        ({"rdma": {"resource": "hca"}}, {}, "write it with its domain: rdma/rdma_shared_device_a"),
        ({"rdma": {"resource": "nvidia.com/gpu"}}, {}, "which is a GPU; gpus and mig ask for"),
        ({"rdma": {"count": 0}}, {}, "rdma.count is 0"),
        ({"host_ipc": True}, {"shm_size": "8Gi"}, "/dev/shm is the node's"),
        ({"cpu_pinning": True}, {}, "cpu are unset and unset"),
        ({"cpu_pinning": True}, {"cpu": "1500m", "memory": "1Gi"}, "needs whole CPUs"),
        (
            {"cpu_pinning": True},
            {"memory": "1Gi", "task_config": {"resources": {"limits": {"cpu": "4"}}}},
            "",
        ),
        (
            {"cpu_pinning": True},
            {
                "memory": "1Gi",
                "task_config": {"resources": {"limits": {"cpu": "4"}, "requests": {"cpu": "2"}}},
            },
            "are 2 and 4",
        ),
    ],
)
def test_what_contradicts_itself_or_other_inputs_is_refused(
    asked: Any, inputs: dict[str, Any], said: str
) -> None:
    if not said:
        # Kubernetes takes a limit without a request for both.
        parsed(asked, **inputs)
        return
    with pytest.raises(InputError, match=re.escape(said)):
        parsed(asked, **inputs)
