"""A job of an earlier version is recognised by the hash of what it is made of."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.runtime.identity import identify

SEVERAL: dict[str, Any] = {
    "image": "registry/train:1",
    "name": "Digits",
    "namespace": "team",
    "command": ["python", "-m", "train"],
    "args": ["--seed", 3],
    "hyperparameters": {"epochs": 2.0, "lr": 0.1, "amp": True},
    "env": {"A": "1", "S": {"secretKeyRef": {"name": "s", "key": "k"}}},
    "num_nodes": 3,
    "cpu": "4",
    "memory": "16Gi",
    "gpus_per_node": 2,
    "gpu_resource": "amd.com/gpu",
    "shm_size": "8Gi",
    "output_uri": "minio://bucket/runs",
    "key": "run-1",
    "output_secret": "models",
    "resume_from": "pvc://old/run",
    "image_pull_secrets": ["a", "b", "a"],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "labels": {"team": "a"},
    "annotations": {"x": 1},
    "pod_template_patch": {"spec": {"priorityClassName": "p"}},
    "clean_pod_policy": "Keep",
    "timeout": 60,
    "node_selector": {"zone": "b"},
    "task_config": {
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        "env": [{"name": "T", "value": "t"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "nodeSelector": {"zone": "a", "k": "v"},
    },
}


@pytest.mark.parametrize(
    ("inputs", "hash_of_first_version"),
    [({"image": "train:1"}, "86503ba96c30234b"), (SEVERAL, "bc44e8a6e3244b01")],
)
def test_the_spec_hash_is_the_same_as_in_the_first_version(
    inputs: dict[str, Any], hash_of_first_version: str
) -> None:
    identity = identify("n", "u://x", "-worker-0", "", parse_inputs(**inputs).spec())
    assert identity.labels[SPEC_HASH_LABEL] == hash_of_first_version


def test_what_only_the_launcher_does_makes_no_other_job() -> None:
    usual, other = (parse_inputs(image="a", retry_same_error=value) for value in (False, True))
    assert usual.spec() == other.spec()
