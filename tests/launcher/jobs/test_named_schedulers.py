"""A job that names two schedulers, in whatever way, is refused before there is one."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.registry import kind_of

KUEUE = {"kueue.x-k8s.io/queue-name": "q"}
VOLCANO = {"scheduling.volcano.sh/queue-name": "q"}
GROUP = {"scheduling.x-k8s.io/pod-group": "mine"}


def patch(scheduler: str = "", **metadata: Any) -> dict[str, Any]:
    spec = {"schedulerName": scheduler} if scheduler else {}
    return {"pod_template_patch": {"metadata": metadata, "spec": spec}}


# Inputs that name a scheduler each, and the words for what names it.
WAYS: list[tuple[str, dict[str, Any], str]] = [
    ("kueue", {"labels": KUEUE}, "the job's label 'kueue.x-k8s.io/queue-name'"),
    ("kueue", {"scheduling": {"scheduler": "kueue", "queue": "q"}}, "the input scheduling"),
    ("volcano", {"annotations": VOLCANO}, "annotation 'scheduling.volcano.sh/queue-name'"),
    ("volcano", patch(scheduler="volcano"), "the pods' schedulerName 'volcano'"),
    ("coscheduling", patch(labels=GROUP), "the pods' label 'scheduling.x-k8s.io/pod-group'"),
    ("coscheduling", patch(scheduler="scheduler-plugins-scheduler"), "the pods' schedulerName"),
    ("kai", {"labels": {"kai.scheduler/queue": "q"}}, "the job's label 'kai.scheduler/queue'"),
    ("kai", patch(scheduler="kai-scheduler"), "the pods' schedulerName 'kai-scheduler'"),
    ("yunikorn", patch(scheduler="yunikorn"), "the pods' schedulerName 'yunikorn'"),
    ("yunikorn", patch(annotations={"yunikorn.apache.org/task-group-name": "g"}), "annotation"),
]
PAIRS = [
    (one, other)
    for one, other in itertools.combinations(WAYS, 2)
    if one[0] != other[0] and not one[1].keys() & other[1].keys()
]


def build(step: str, **inputs: Any) -> dict[str, Any]:
    kind = kind_of(step, inputs)
    return kind.build(
        kind.parse_inputs(**inputs), job_name="j", labels={}, annotations={}, owner=None
    )


def refused(step: str, **inputs: Any) -> str:
    with pytest.raises(InputError) as caught:
        build(step, **inputs)
    return str(caught.value.message)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_schedulers_are_refused_with_what_names_each(one: Any, other: Any) -> None:
    words = refused("pytorch_job", image="i", **one[1], **other[1])
    for scheduler, _, place in (one, other):
        assert f"for {scheduler} (by " in words
        assert place in words
    assert "Keep one of them" in words


@pytest.mark.parametrize(("scheduler", "inputs", "_place"), WAYS)
def test_one_scheduler_is_taken_however_it_is_named(
    scheduler: str, inputs: dict[str, Any], _place: str
) -> None:
    build("pytorch_job", image="i", **inputs)
    build("kubeflow_job", kind="TFJob", image="i", **inputs)


def test_a_name_of_another_scheduler_is_one_too_many() -> None:
    wrong = {"scheduler": "volcano", "scheduler_name": "kai-scheduler"}
    words = refused("pytorch_job", image="i", scheduling=wrong)
    assert "schedulerName 'kai-scheduler'" in words
    build("pytorch_job", image="i", scheduling={**wrong, "scheduler_name": "volcano-2"})


@pytest.mark.parametrize(
    "inputs",
    [
        {"labels": KUEUE, "annotations": VOLCANO},
        {"managed_by": "kueue.x-k8s.io/multikueue", "annotations": VOLCANO},
        {"labels": KUEUE, **patch(labels=GROUP)},
    ],
)
def test_a_train_job_has_one_too(inputs: dict[str, Any]) -> None:
    assert "for kueue (by" in refused("train_job", **inputs)


def manifest(policy: dict[str, Any] | None = None, **template: Any) -> dict[str, Any]:
    pods = {"spec": {"containers": [{"name": "jax", "image": "i"}]}}
    pods |= copy.deepcopy(template)
    spec: dict[str, Any] = {"jaxReplicaSpecs": {"Worker": {"replicas": 2, "template": pods}}}
    if policy:
        spec["runPolicy"] = policy
    return {"apiVersion": "kubeflow.org/v1", "kind": "JAXJob", "spec": spec}


GANG = {"schedulingPolicy": {"minAvailable": 2}}


@pytest.mark.parametrize(
    ("inputs", "places"),
    [
        (
            {"manifest": manifest(metadata={"annotations": VOLCANO}), "labels": KUEUE},
            ["the job's label 'kueue", "the pods' annotation 'scheduling.volcano"],
        ),
        (
            {"manifest": manifest(metadata={"labels": GROUP | {"kai.scheduler/queue": "q"}})},
            ["the pods' label 'scheduling.x-k8s.io/pod-group'", "the pods' label 'kai"],
        ),
        (
            {"manifest": manifest(GANG), "labels": KUEUE},
            ["the job's label 'kueue", "the operator's gang scheduling (by runPolicy.scheduling"],
        ),
        (
            {
                "manifest": manifest({"managedBy": "kueue.x-k8s.io/multikueue"}),
                "annotations": {"yunikorn.apache.org/app-id": "a"},
            },
            ["managedBy 'kueue.x-k8s.io/multikueue'", "annotation 'yunikorn"],
        ),
        (
            {"manifest": manifest(GANG, metadata={"labels": GROUP})},
            ["name the PodGroup 'mine'", "runPolicy.schedulingPolicy", "Drop one"],
        ),
    ],
)
def test_a_whole_manifest_is_for_one_scheduler_and_one_pod_group(
    inputs: dict[str, Any], places: list[str]
) -> None:
    words = refused("kubeflow_job", **inputs)
    assert all(place in words for place in places), words


def test_the_operator_s_gang_may_be_volcano_s_and_kueue_may_read_its_priority() -> None:
    build("kubeflow_job", manifest=manifest(GANG, metadata={"annotations": VOLCANO}))
    of_job = {"scheduling.k8s.io/group-name": "j"}
    build("kubeflow_job", manifest=manifest(GANG, metadata={"annotations": of_job}))
    priority = {"schedulingPolicy": {"priorityClass": "p"}}
    build("kubeflow_job", manifest=manifest(priority), labels=KUEUE)
