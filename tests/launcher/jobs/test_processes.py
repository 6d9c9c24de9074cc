"""A pod has no more processes of torchrun than GPUs, where it has some."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.registry import KINDS

GPU = "nvidia.com/gpu"
OF_TASK = {"task_config": {"resources": {"limits": {GPU: "2"}}}}


def parsed(step: str, **inputs: Any) -> str:
    return KINDS[step].parse_inputs(image="i", **inputs).nproc_per_node


@pytest.mark.parametrize("step", KINDS)
@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"nproc_per_node": 4, "gpus_per_node": 2}, "is '4', and a pod has 2 of nvidia.com/gpu"),
        ({"nproc_per_node": 3, **OF_TASK}, "is '3', and a pod has 2 of nvidia.com/gpu"),
        ({"nproc_per_node": 2, "placement": {"gpus": 1}}, "is '2', and a pod has 1"),
        (
            {"nproc_per_node": 2, "gpus_per_node": 1, "gpu_resource": "amd.com/gpu"},
            "is '2', and a pod has 1 of amd.com/gpu",
        ),
    ],
)
def test_processes_that_would_share_a_gpu_are_refused(
    step: str, inputs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        parsed(step, **inputs)
    assert words in caught.value.message
    assert "Leave nproc_per_node out for one process for each GPU" in caught.value.message


def test_a_process_for_each_cpu_is_not_for_gpus() -> None:
    with pytest.raises(InputError, match="nproc_per_node is 'cpu', and a pod has 2"):
        parsed("pytorch_job", nproc_per_node="cpu", gpus_per_node=2)
    assert parsed("pytorch_job", nproc_per_node="cpu") == "cpu"
    assert parsed("pytorch_job", nproc_per_node="auto", gpus_per_node=2) == "auto"


@pytest.mark.parametrize("step", KINDS)
def test_as_many_or_fewer_are_taken_and_any_number_without_gpus(step: str) -> None:
    assert parsed(step, nproc_per_node=8) == "8"
    assert parsed(step, nproc_per_node=1, gpus_per_node=8) == "1"
    assert parsed(step, gpus_per_node=8) == "8"
    name = "pytorch" if step == "pytorch_job" else "node"
    more = {"containers": [{"name": name, "resources": {"limits": {GPU: 4}}}]}
    patch = {"pod_template_patch": {"spec": more}}
    assert parsed(step, nproc_per_node=4, gpus_per_node=1, **patch) == "4"
