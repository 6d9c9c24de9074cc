"""The settings of a KFP task, in the form in which the backend hands them over.

The JSON is what backend/src/v2/driver makes of a Go struct: nulls for what is not set, quantities
as strings, and, through a protobuf Struct, every number a float.
"""

from __future__ import annotations

from typing import Any

import pytest
from kfp import dsl

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest

EMPTY: dict[str, Any] = {
    "affinity": None,
    "tolerations": None,
    "nodeSelector": None,
    "env": None,
    "volumes": None,
    "volumeMounts": None,
    "resources": {},
}
NODES = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5.0, "preference": {"matchFields": None}}
        ],
    }
}


def pod(of_task: Any, **inputs: Any) -> dict[str, Any]:
    parsed = parse_inputs(image="i", task_config=of_task, **inputs)
    job = manifest(parsed, job_name="j", labels={}, annotations={}, owner=None)
    specs = [r["template"]["spec"] for r in job["spec"]["pytorchReplicaSpecs"].values()]
    assert all(spec == specs[0] for spec in specs)
    return specs[0]


def pytorch(of_task: Any, **inputs: Any) -> dict[str, Any]:
    return pod(of_task, **inputs)["containers"][0]


def env(container: dict[str, Any]) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container["env"]}


@pytest.mark.parametrize("nothing", [None, {}, EMPTY, dsl.TaskConfig()])
def test_a_task_with_nothing_set_changes_nothing(nothing: Any) -> None:
    assert pod(nothing) == pod(None)


def test_the_form_of_the_sdk_and_that_of_the_backend_are_read_alike() -> None:
    as_json = {**EMPTY, "nodeSelector": {"zone": "a"}, "volumeMounts": None}
    as_object = dsl.TaskConfig(node_selector={"zone": "a"}, resources={})
    assert pod(as_json) == pod(as_object)


def test_accelerators_reach_every_node_and_set_the_processes() -> None:
    resources = {"limits": {"nvidia.com/gpu": "4", "memory": "64G"}, "requests": {"cpu": "8"}}
    parsed = parse_inputs(image="i", num_nodes=2, task_config={**EMPTY, "resources": resources})
    assert parsed.nproc_per_node == "4"
    container = pytorch({**EMPTY, "resources": resources}, num_nodes=2)
    assert container["resources"] == resources


def test_an_explicit_resource_beats_the_task_s_and_leaves_the_others() -> None:
    resources = {
        "limits": {"nvidia.com/gpu": "4", "memory": "64G", "cpu": "8"},
        "requests": {"cpu": "8", "memory": "32G"},
    }
    of_task = {**EMPTY, "resources": resources}
    container = pytorch(of_task, cpu="2", gpus_per_node=1, gpu_resource="nvidia.com/mig-1g.5gb")
    assert container["resources"] == {
        "limits": {"nvidia.com/mig-1g.5gb": "1", "memory": "64G", "cpu": "2"},
        "requests": {"cpu": "2", "memory": "32G"},
    }


def test_tolerations_reach_the_pods_and_an_explicit_one_beats_that_of_the_same_taint() -> None:
    given = [
        {"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"},
        {
            "key": "spot",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300.0,
            "value": None,
        },
    ]
    of_task = {**EMPTY, "tolerations": given}
    spot = {key: value for key, value in given[1].items() if value} | {"tolerationSeconds": 300}
    assert pod(of_task)["tolerations"] == [given[0], spot]
    explicit = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert pod(of_task, tolerations=[explicit])["tolerations"] == [spot, explicit]


def test_node_selectors_reach_the_pods_and_an_explicit_label_beats_that_of_the_same_key() -> None:
    of_task = {**EMPTY, "nodeSelector": {"zone": "a", "gpu": "a100"}}
    assert pod(of_task)["nodeSelector"] == {"zone": "a", "gpu": "a100"}
    assert pod(of_task, node_selector={"gpu": "h100"})["nodeSelector"] == {
        "zone": "a",
        "gpu": "h100",
    }


def test_affinity_reaches_the_pods_and_an_explicit_kind_beats_the_task_s() -> None:
    of_task = {**EMPTY, "affinity": NODES}
    found = pod(of_task)["affinity"]["nodeAffinity"]
    preferred = found["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred == [{"weight": 5, "preference": {}}]
    assert "requiredDuringSchedulingIgnoredDuringExecution" in found
    apart = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert set(pod(of_task, affinity=apart)["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    own = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert pod(of_task, affinity=own)["affinity"] == own


def test_variables_of_every_kind_reach_the_container_and_an_explicit_one_beats_the_task_s() -> None:
    secret = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    field = {"fieldRef": {"fieldPath": "metadata.name"}}
    of_task = {
        **EMPTY,
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "task"},
            {"name": "EMPTY"},
            {"name": "S", "valueFrom": secret},
            {"name": "F", "valueFrom": field},
        ],
    }
    found = env(pytorch(of_task, env={"B": "input", "C": 3.0}))
    del found["KFP_PYTORCH_OUTPUT"], found["KFP_PYTORCH_TERMINATION_LOG"]
    assert found == {"A": "1", "B": "input", "EMPTY": None, "S": secret, "F": field, "C": "3"}


def test_volumes_and_their_mounts_reach_the_container() -> None:
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    secret = {"name": "certs", "secret": {"secretName": "certs", "optional": False}}
    of_task = {
        **EMPTY,
        "volumes": [claim, secret, claim],
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "certs", "mountPath": "/certs"},
            {"name": "data", "mountPath": "/again", "subPath": "x"},
        ],
    }
    spec = pod(of_task, shm_size="0")
    assert [v["name"] for v in spec["volumes"]] == ["data", "certs", "kfp-pytorch-output"]
    paths = [m["mountPath"] for m in spec["containers"][0]["volumeMounts"]]
    assert paths == ["/data", "/certs", "/again", "/mnt/kfp-pytorch/output"]


def test_memory_that_the_author_mounted_at_dev_shm_is_not_doubled() -> None:
    volume = {"name": "mine", "emptyDir": {"medium": "Memory"}}
    of_task = {
        **EMPTY,
        "volumes": [volume],
        "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}],
    }
    spec = pod(of_task, gpus_per_node=8)
    assert [v["name"] for v in spec["volumes"]] == ["mine", "kfp-pytorch-output"]


def test_a_volume_where_the_job_s_own_output_goes_is_refused() -> None:
    of_task = {
        **EMPTY,
        "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}],
        "volumeMounts": [{"name": "d", "mountPath": "/mnt/kfp-pytorch/output"}],
    }
    with pytest.raises(InputError, match="Two volumes are mounted at"):
        pod(of_task)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("tolerations", [{"key": "a", "operator": "Bad"}], r"\[0\].operator is 'Bad'"),
        ("tolerations", [""], r"task's tolerations\[0\] must be an object|has no key"),
        ("nodeSelector", {"a": "b c"}, r"node_selector\['a'\] is 'b c'"),
        ("resources", {"limits": {"NVIDIA_TESLA_K80": "1"}}, "limits is 'NVIDIA_TESLA_K80'"),
        ("resources", {"limits": 1}, "limits must be an object"),
        ("env", [{}], r"the task's env\[0\] has no name"),
        ("volumes", ["claim"], r"the task's volumes\[0\] must be an object"),
        ("volumes", [{"name": "A_B"}], "name of a volume is 'A_B'"),
        ("volumeMounts", [1.0], r"the task's volume_mounts\[0\] must be an object"),
    ],
)
def test_settings_that_no_pod_could_have_are_refused_before_there_is_a_job(
    field: str, value: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        pod({**EMPTY, field: value})
