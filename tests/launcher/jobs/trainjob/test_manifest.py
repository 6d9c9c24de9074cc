"""The TrainJob that inputs make, for each version of the Trainer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from conftest import closed
from harness.objects import trainer

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.trainjob.forms import FORMS
from kfp_pytorch.launcher.jobs.trainjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB
from kfp_pytorch.launcher.runtime import identity

Check = Callable[[str, dict[str, Any]], None]
GOLDEN = Path(__file__).with_name("golden")
# Everything that an older Trainer has, too.
INPUTS: dict[str, Any] = {
    "image": "train:1",
    "num_nodes": 2,
    "gpus_per_node": 4,
    "memory": "4Gi",
    "command": ["python", "-m", "train"],
    "args": ["--pattern", "$(B)"],
    "env": {"A": 1},
    "output_uri": "pvc://models/x",
    "key": "run",
    "labels": {"kueue.x-k8s.io/queue-name": "team-a", "team": "a"},
    "node_selector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "service_account": "trainer",
    "dataset_initializer": {"storage_uri": "hf://a/b", "secret": "hf", "env": {"X": 1}},
    "runtime": "torchtune-llama3.2-1b",
    "active_deadline": 100,
}


def job(**inputs: Any) -> dict[str, Any]:
    given = parse_inputs(**{"image": "train:1", **inputs})
    labels, annotations = {"app": "x"}, {"a/b": "1"}
    return TRAIN_JOB.build(
        given, job_name="j-1", labels=labels, annotations=annotations, owner=None
    )


def node_pod(made: dict[str, Any]) -> dict[str, Any]:
    jobs = made["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    found: dict[str, Any] = jobs["replicatedJobs"][0]["template"]["spec"]["template"]
    return found


@pytest.mark.parametrize("field", FORMS)
def test_each_trainer_gets_the_job_in_its_own_form(field: str) -> None:
    made = job(**INPUTS, patch_form=field)
    assert made == yaml.safe_load((GOLDEN / f"{field}.yaml").read_text())


@pytest.mark.parametrize("field", FORMS)
def test_each_form_is_valid_with_unknown_fields_refused(field: str) -> None:
    if not trainer.FILE.exists():
        pytest.skip("no CustomResourceDefinitions")
    validator = jsonschema_rs.validator_for(closed(trainer.schema(field)))
    assert [error.message for error in validator.iter_errors(job(**INPUTS, patch_form=field))] == []


def test_a_job_with_all_that_trainer_2_3_has_is_valid(check_crd: Check) -> None:
    made = job(
        **INPUTS,
        affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        image_pull_secrets=["pull"],
        security_context={"supplementalGroups": [5]},
        model_initializer={"storage_uri": "s3://models/x"},
        suspend=True,
        managed_by="kueue.x-k8s.io/multikueue",
        pod_template_patch={"spec": {"terminationGracePeriodSeconds": 60}},
    )
    check_crd("trainjobs", made)
    assert made["spec"]["suspend"] is True
    assert node_pod(made)["spec"]["terminationGracePeriodSeconds"] == 60
    assert TRAIN_JOB.expected_pods(made) == 0


def test_a_job_without_an_image_takes_the_runtimes(check_crd: Check) -> None:
    made = job(image="")
    check_crd("trainjobs", made)
    assert "image" not in made["spec"]["trainer"]
    assert "command" not in made["spec"]["trainer"]


def test_a_queue_is_the_jobs_and_what_places_pods_is_in_the_patch(check_crd: Check) -> None:
    made = job(
        num_nodes=2,
        scheduling={"scheduler": "kueue", "queue": "team-a", "topology_aware": True},
        placement={"gpus": 8, "gpu_products": ["A100"], "same": "zone"},
    )
    check_crd("trainjobs", made)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    pods = node_pod(made)
    assert "kueue.x-k8s.io/queue-name" not in pods["metadata"]["labels"]
    assert "kueue.x-k8s.io/podset-required-topology" in pods["metadata"]["annotations"]
    assert "nodeAffinity" in pods["spec"]["affinity"]
    assert made["spec"]["trainer"]["numProcPerNode"] == 8


def test_a_secret_comes_as_the_variables_that_a_bucket_needs() -> None:
    made = job(output_uri="s3://bucket/x", output_secret="keys", env={"AWS_REGION": "eu"})
    env = {variable["name"]: variable for variable in made["spec"]["trainer"]["env"]}
    reference = {"name": "keys", "key": "AWS_ACCESS_KEY_ID", "optional": True}
    assert env["AWS_ACCESS_KEY_ID"]["valueFrom"] == {"secretKeyRef": reference}
    assert env["AWS_REGION"] == {"name": "AWS_REGION", "value": "eu"}


def test_the_template_of_a_job_is_read_back_in_each_form() -> None:
    templates = [TRAIN_JOB.pod_templates(job(**INPUTS, patch_form=field))[0] for field in FORMS]
    for template in templates:
        (container,) = template["spec"]["containers"]
        assert container["image"] == "train:1"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
        assert template["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert templates[0]["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize(
    ("inputs", "room"),
    [
        ({"num_nodes": 1}, 48),
        ({"num_nodes": 10}, 48),
        ({"num_nodes": 11}, 47),
        ({"model_initializer": {"storage_uri": "s3://b/x"}}, 35),
    ],
)
def test_a_name_leaves_room_for_the_pods_names(inputs: dict[str, Any], room: int) -> None:
    suffix = TRAIN_JOB.longest_suffix(parse_inputs(image="i", **inputs))
    assert len(identity.job_name("x" * 80, "s3://a/b", suffix)) == room


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"nproc_per_node": "auto"}, "nproc_per_node is 'auto', which a TrainJob cannot have"),
        ({"nproc_per_node": 0}, "must be from 1"),
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"env": {"PET_NNODES": "3"}}, "env may not set PET_NNODES: the operator does"),
        ({"runtime": "Torch_x"}, "runtime is 'Torch_x'"),
        ({"runtime_kind": "Runtime"}, "must be one of ClusterTrainingRuntime, TrainingRuntime"),
        ({"managed_by": "me"}, "managed_by is 'me'"),
        (
            {"scheduling": {"scheduler": "volcano"}},
            "train_job can have kueue. A runtime with a podGroupPolicy",
        ),
        (
            {"scheduling": {"priority_class": "high"}},
            "cannot be given priorityClassName: with runtimePatches",
        ),
        ({"patch_form": "x"}, "must be one of runtimePatches"),
        ({"dataset_initializer": {"storage_uri": "data"}}, "write SCHEME://PLACE"),
        ({"dataset_initializer": {"storage_uri": "s3://k:pw@b/x"}}, "has credentials before '@'"),
        ({"model_initializer": {"uri": "s3://a"}}, "unknown field 'uri'"),
        ({"image_pull_policy": "Always"}, "train_job has no input 'image_pull_policy'"),
        ({"args": ["x"] * 129}, "args has 129 items; a TrainJob takes at most 128"),
        ({"image": f"a/{'b' * 250}:{'c' * 100}@sha256:{'0' * 200}"}, "at most 500"),
        (
            {"pod_template_patch": {"spec": {"priorityClassName": "high"}}},
            "cannot be given priorityClassName: with runtimePatches",
        ),
        (
            {"pod_template_patch": {"spec": {"containers": [{"name": "a", "image": "b"}]}}},
            "has the container 'a'",
        ),
        (
            {"pod_template_patch": {"spec": {"containers": [{"name": "node", "tty": True}]}}},
            "container 'node' of a TrainJob cannot be given tty",
        ),
        (
            {"patch_form": "podSpecOverrides", "image_pull_secrets": ["a"]},
            "cannot be given imagePullSecrets: with podSpecOverrides",
        ),
        (
            {"patch_form": "podTemplateOverrides", "security_context": {"runAsGroup": 5}},
            "cannot be given securityContext: with podTemplateOverrides",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        job(**inputs)
