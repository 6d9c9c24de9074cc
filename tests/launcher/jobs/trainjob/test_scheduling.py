"""A TrainJob has Kueue, and no scheduler of its own; a placement goes into its runtime's pods."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.trainjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB

Check = Callable[[str, dict[str, Any]], None]
LABELS = {"kfp-pytorch/step-id": "s"}
KUEUE = {"scheduler": "kueue", "queue": "team-a"}


def job(**inputs: Any) -> dict[str, Any]:
    given = parse_inputs(**{"image": "train:1", "num_nodes": 2, **inputs})
    return TRAIN_JOB.build(given, job_name="j-1", labels=LABELS, annotations={}, owner=None)


def pods(made: dict[str, Any]) -> dict[str, Any]:
    (patch,) = made["spec"]["runtimePatches"]
    (of_node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    found: dict[str, Any] = of_node["template"]["spec"]["template"]
    return found


def test_the_job_alone_waits_in_the_queue_and_kueue_keeps_its_pods_in_one_rack(
    check_crd: Check,
) -> None:
    scheduling = {**KUEUE, "workload_priority_class": "high", "topology_aware": True}
    made = job(scheduling=scheduling, placement={"same": "rack"})
    check_crd("trainjobs", made)
    queue = {"kueue.x-k8s.io/queue-name": "team-a", "kueue.x-k8s.io/priority-class": "high"}
    assert made["metadata"]["labels"] == {**LABELS, **queue}
    metadata = pods(made)["metadata"]
    assert not {*queue} & {*metadata["labels"]}
    of_kueue = {k: v for k, v in metadata["annotations"].items() if k.startswith("kueue")}
    # One role makes no group.
    rack = "topology.kubernetes.io/rack"
    assert of_kueue == {"kueue.x-k8s.io/podset-required-topology": rack}
    assert "affinity" not in pods(made)["spec"]


def test_devices_are_the_trainer_s_and_the_rest_is_the_pods(check_crd: Check) -> None:
    placement = {"mig": "3g.20gb", "gpu_products": ["A100"], "spread": "node", "rdma": {"count": 2}}
    made = job(placement=placement)
    check_crd("trainjobs", made)
    trainer = made["spec"]["trainer"]
    limits = {"nvidia.com/mig-3g.20gb": "1", "rdma/rdma_shared_device_a": "2"}
    assert trainer["resourcesPerNode"] == {"limits": limits}
    assert trainer["numProcPerNode"] == 1
    assert {"name": "NCCL_NET", "value": "IB"} in trainer["env"]
    assert set(pods(made)["spec"]["affinity"]) == {"nodeAffinity", "podAntiAffinity"}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"scheduling": {"scheduler": "volcano"}}, "can have kueue. A runtime with a podGroupPol"),
        ({"scheduling": {"scheduler": "kai"}}, "name such a one as runtime"),
        ({"scheduling": {"priority_class": "p"}}, "cannot be given priorityClassName"),
        ({"placement": {"host_ipc": True}}, "cannot be given hostIPC"),
        (
            {"pod_template_patch": {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}},
            "a TrainJob waits in a queue as a whole: use scheduling",
        ),
        ({"placement": {"spread": "node"}, "patch_form": "podSpecOverrides"}, "given affinity"),
    ],
)
def test_what_only_its_runtime_can_say_is_refused(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        job(**inputs)
