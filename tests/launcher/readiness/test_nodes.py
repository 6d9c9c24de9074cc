"""What there is of accelerators, and whether pods fit where others run."""

import pytest
from harness.objects import ready

from kfp_pytorch.launcher.constants import CONFIG_MAP, LIMIT_RANGE, NODE, POD, RESOURCE_QUOTA


def pod(server, name, node, gpus, phase="Running"):
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"cpu": "1"}}
    container = {"name": "c", "image": "i", "resources": resources}
    spec = {"nodeName": node, "containers": [container]}
    ready.make(server, POD, {"metadata": ready.named(name), "spec": spec}, {"phase": phase})


def test_what_others_hold_is_not_free_and_the_run_would_wait(server, look, bad):
    ready.node(server, "gpu-1", 8)
    pod(server, "one", ready.GPU_NODE, 6)
    pod(server, "over", ready.GPU_NODE, 2, phase="Succeeded")
    told = {each.about: each.what for each in look()}
    assert told["accelerators"] == (
        "2 nodes with NVIDIA-H100-80GB-HBM3: 16 of nvidia.com/gpu, 10 of them free."
    )
    [found] = bad(num_nodes=2, gpus_per_node=8)
    assert found.level == "warning"
    assert "2 pods with 8 of nvidia.com/gpu, but now only 1 of them" in found.what
    assert bad(num_nodes=5, gpus_per_node=2) == []


def test_slices_of_a_gpu_are_a_resource_of_their_own(server, look):
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    ready_now = [{"type": "Ready", "status": "True"}]
    allocatable = {"cpu": "8", "pods": "110", "nvidia.com/mig-1g.10gb": "7"}
    obj = {"metadata": {"name": "mig", "labels": labels}, "spec": {}}
    ready.make(server, NODE, obj, {"allocatable": allocatable, "conditions": ready_now})
    resource = "nvidia.com/mig-1g.10gb"
    found = look(gpus_per_node=1, num_nodes=7, gpu_resource=resource)
    told = [each.what for each in found if each.about == "accelerators"]
    assert f"1 node with {labels['nvidia.com/gpu.product']}: 7 of {resource}, 7 of them free." in (
        told
    )
    assert {each.level for each in found} == {"ok"}


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "team", "value": "a"}, True),
        ({"key": "team", "value": "b"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_covers_what_it_says(server, bad, toleration, covers):
    taints = [
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
    ]
    ready.change(server, NODE, ready.GPU_NODE, spec={"taints": taints})
    assert (bad(gpus_per_node=1, tolerations=[toleration]) == []) is covers


def test_a_provider_that_adds_the_toleration_itself_needs_none(server, bad):
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    metadata = server.call(server.api.get, NODE, "", ready.GPU_NODE)["metadata"]
    labels = {**metadata["labels"], "cloud.google.com/gke-nodepool": "gpus"}
    metadata = {**metadata, "labels": labels}
    ready.change(server, NODE, ready.GPU_NODE, metadata=metadata, spec={"taints": [taint]})
    assert bad(gpus_per_node=1) == []


def test_where_nodes_may_be_added_too_few_are_a_warning(server, bad):
    metadata = ready.named("cluster-autoscaler-status", "kube-system")
    ready.make(server, CONFIG_MAP, {"metadata": metadata})
    [found] = bad(gpus_per_node=8, num_nodes=2)
    assert (found.level, "autoscaler may add some" in found.what) == ("warning", True)


def test_a_limit_range_states_what_a_quota_demands(server, bad):
    hard = {"requests.cpu": "8", "limits.memory": "8Gi"}
    ready.make(server, RESOURCE_QUOTA, {"metadata": ready.named("team"), "spec": {"hard": hard}})
    limits = [{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}}]
    ready.make(server, LIMIT_RANGE, {"metadata": ready.named("l"), "spec": {"limits": limits}})
    assert bad() == []


def test_a_quota_of_other_pods_does_not_count(server, bad):
    spec = {"hard": {"pods": "0"}, "scopes": ["Terminating"]}
    ready.make(server, RESOURCE_QUOTA, {"metadata": ready.named("short"), "spec": spec})
    spec = {"hard": {"pods": "0"}, "scopes": ["NotTerminating"]}
    assert bad() == []
    ready.make(server, RESOURCE_QUOTA, {"metadata": ready.named("long"), "spec": spec})
    assert "ResourceQuota default/long" in bad()[0].what


def test_a_quota_of_jobs_counts_the_job(server, bad):
    hard = {"count/pytorchjobs.kubeflow.org": "1"}
    quota = {"metadata": ready.named("jobs"), "spec": {"hard": hard}}
    ready.make(server, RESOURCE_QUOTA, quota, {"hard": hard, "used": {**hard}})
    [found] = bad()
    assert "count/pytorchjobs.kubeflow.org: the run asks for 1, 1 is used" in found.what
