"""Inputs of kubeflow_job that cannot work are refused before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.kubeflowjob.inputs import KubeflowJobInputs
from kfp_pytorch.launcher.jobs.registry import kind_of
from kfp_pytorch.launcher.runtime.identity import job_name


def parsed(**inputs: Any) -> KubeflowJobInputs:
    kind = kind_of("kubeflow_job", inputs)
    found = kind.parse_inputs(**{"image": "i"} | inputs)
    assert isinstance(found, KubeflowJobInputs)
    return found


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "kind is not set; give one of TFJob, MPIJob"),
        ({"kind": "SparkJob"}, "kind is 'SparkJob'; it must be one of TFJob, MPIJob"),
        ({"kind": "tfjob"}, "kind is 'tfjob'; it must be one of"),
        ({"kind": "PyTorchJob"}, "the component pytorch_job is for that kind"),
        ({"kind": "TrainJob"}, "the component train_job is for that kind"),
        ({"kind": "JAXJob", "success_policy": "AllWorkers"}, "a TFJob alone has it"),
        ({"kind": "TFJob", "success_policy": "Any"}, "success_policy is 'Any'; it must be"),
        ({"kind": "PaddleJob", "scheduling": {"scheduler": "kai"}}, "a PaddleJob one by one"),
        ({"kind": "TFJob", "image": ""}, "image is not set"),
        ({"kind": "TFJob", "num_nodes": 0}, "num_nodes is 0; it must be from 1"),
        ({"kind": "TFJob", "replicas": {"Worker": 0}}, "replicas['Worker'] is 0; it must be"),
        (
            {"kind": "TFJob", "replicas": {"Worker": {"replicas": 0}}},
            "replicas['Worker'].replicas is 0",
        ),
        ({"kind": "TFJob", "replicas": {"Worker": None}}, "replicas['Worker'] is None; give the"),
        (
            {
                "kind": "TFJob",
                "replicas": {"Worker": {"gpus_per_node": 2}},
                "placement": {"mig": "1g.5gb"},
            },
            "a pod has whole GPUs or one MIG device",
        ),
        ({"kind": "TFJob", "replicas": {"Worker": {"gpus": 1}}}, "unknown field 'gpus'"),
        ({"kind": "TFJob", "replicas": {"Boss": 1}}, "has no role 'Boss'"),
        ({"kind": "TFJob", "replicas": {"Chief": 2}}, "one pod of the role 'Chief', not 2"),
        ({"kind": "JAXJob", "replicas": {"Master": 1}}, "has no role 'Master'"),
        ({"kind": "MPIJob", "replicas": {"Worker": 2}}, "needs the role 'Launcher'"),
        ({"kind": "TFJob", "replicas": {"Worker": 1}, "num_nodes": 2}, "are both set"),
        ({"kind": "JAXJob", "nproc_per_node": "2"}, "MPIJob alone has it"),
        ({"kind": "MPIJob", "nproc_per_node": "auto"}, "the slots of a worker are a number"),
        ({"kind": "MPIJob", "restart_policy": "ExitCode"}, "makes no pod of an MPIJob anew"),
        ({"kind": "TFJob", "env": {"TF_CONFIG": "{}"}}, "env may not set TF_CONFIG"),
        ({"kind": "JAXJob", "elastic": {}}, "kubeflow_job has no input 'elastic'"),
    ],
)
def test_inputs_that_cannot_work_are_refused(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(**inputs)
    assert words in caught.value.message


def test_a_name_too_long_is_cut_so_that_the_longest_pod_fits() -> None:
    kind = kind_of("kubeflow_job", {"kind": "TFJob"})
    inputs = parsed(kind="TFJob", name="n" * 80, replicas={"Worker": 1, "Evaluator": 1})
    suffix = kind.longest_suffix(inputs)
    assert len(job_name(inputs.name, "s3://a/b", suffix) + suffix) == 63


def test_the_limit_of_restarts_counts_every_pod() -> None:
    assert parsed(kind="MPIJob", num_nodes=2).backoff_limit == 9
    assert parsed(kind="MPIJob", num_nodes=2, backoff_limit=1).backoff_limit == 1


def test_the_spec_says_all_that_the_job_is_made_of() -> None:
    one, other = (parsed(kind=kind, num_nodes=2).spec() for kind in ("TFJob", "JAXJob"))
    assert one != other
    changes = {"Worker": {"replicas": 2, "command": "x"}}
    assert parsed(kind="TFJob", replicas=changes).spec() != one
