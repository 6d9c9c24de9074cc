"""A container has whole GPUs or MIG devices of one profile, wherever it is asked for some."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.registry import kind_of

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


def build(step: str, **inputs: Any) -> dict[str, Any]:
    kind = kind_of(step, inputs)
    return kind.build(
        kind.parse_inputs(**inputs), job_name="j", labels={}, annotations={}, owner=None
    )


def patch(container: str, part: str = "limits", /, **amounts: Any) -> dict[str, Any]:
    resources = {part: amounts}
    return {"spec": {"containers": [{"name": container, "resources": resources}]}}


def manifest(*containers: dict[str, Any]) -> dict[str, Any]:
    first, *others = ({"limits": each} for each in containers)
    pod = {
        "containers": [{"name": "jax", "image": "i", "resources": first}],
        "initContainers": [
            {"name": f"c{i}", "image": "i", "resources": other} for i, other in enumerate(others)
        ],
    }
    spec = {"jaxReplicaSpecs": {"Worker": {"template": {"spec": pod}}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "JAXJob", "spec": spec}


CASES: list[tuple[str, dict[str, Any]]] = [
    ("pytorch_job", {"gpus_per_node": 1, "pod_template_patch": patch("pytorch", **{SMALL: 1})}),
    (
        "pytorch_job",
        {
            "gpus_per_node": 1,
            "gpu_resource": LARGE,
            "pod_template_patch": patch("pytorch", "requests", **{GPU: "2"}),
        },
    ),
    (
        "pytorch_job",
        {"placement": {"mig": "3g.20gb"}, "pod_template_patch": patch("pytorch", **{SMALL: 1})},
    ),
    ("pytorch_job", {"task_config": {"resources": {"limits": {GPU: "1", SMALL: "1"}}}}),
    ("pytorch_job", {"pod_template_patch": patch("pytorch", **{SMALL: 1, LARGE: 1})}),
    ("pytorch_job", {"pod_template_patch": patch("pytorch", **{SMALL: 1, f"{GPU}.shared": 1})}),
    ("train_job", {"gpus_per_node": 1, "pod_template_patch": patch("node", **{SMALL: 1})}),
    (
        "kubeflow_job",
        {
            "kind": "TFJob",
            "replicas": {"Worker": {"replicas": 2, "gpus_per_node": 1}},
            "pod_template_patch": patch("tensorflow", **{SMALL: 1}),
        },
    ),
    ("kubeflow_job", {"manifest": manifest({GPU: 1, SMALL: 1})}),
    ("kubeflow_job", {"manifest": manifest({}, {LARGE: 1, SMALL: 1})}),
]


@pytest.mark.parametrize(("step", "inputs"), CASES)
def test_two_of_them_in_one_container_are_refused(step: str, inputs: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"asks for nvidia\.com/.* and nvidia\.com/") as caught:
        build(step, **({} if "manifest" in inputs else {"image": "i"}), **inputs)
    assert "Drop one, wherever it is asked for" in caught.value.message


def test_two_containers_may_differ_and_none_of_a_device_is_no_device() -> None:
    build("kubeflow_job", manifest=manifest({GPU: 1}, {SMALL: 1}))
    build("kubeflow_job", manifest=manifest({GPU: 0, SMALL: 1}))
    none = patch("pytorch", **{GPU: None, SMALL: 1})
    build("pytorch_job", image="i", gpus_per_node=1, pod_template_patch=none)


def test_processes_that_would_share_one_of_several_mig_devices_are_to_be_counted() -> None:
    several = {"image": "i", "gpus_per_node": 2, "gpu_resource": SMALL}
    with pytest.raises(InputError, match="A pod has 2 MIG devices, and nproc_per_node is not set"):
        build("pytorch_job", **several)
    assert build("pytorch_job", **several, nproc_per_node=2)["spec"]["nprocPerNode"] == "2"
