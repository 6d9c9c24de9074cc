"""A job's PodGroup is made once, whoever makes it; a queue that is deaf is told of."""

from __future__ import annotations

from typing import Any

import pytest
from harness.faults.actions import Answer
from harness.objects import records

from kfp_pytorch.launcher.constants import (
    COSCHEDULING_POD_GROUP,
    PYTORCHJOB,
    VOLCANO_POD_GROUP,
    Kind,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB
from kfp_pytorch.launcher.kubernetes.api_errors import Forbidden
from kfp_pytorch.launcher.waiting.ensure import Ensured
from kfp_pytorch.launcher.waiting.prerequisites import schedulers

VOLCANO = {"scheduler": "volcano", "queue": "team-a"}


def group_of(kind: Kind, job: str, uid: str) -> dict[str, Any]:
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": job, "uid": uid}
    return {
        "metadata": {"name": job, "namespace": "default", "ownerReferences": [owner]},
        "spec": {"minMember": 1},
    }


@pytest.mark.parametrize(
    ("scheduling", "kind", "spec"),
    [
        (
            VOLCANO,
            VOLCANO_POD_GROUP,
            {"minMember": 3, "minResources": {"cpu": "6"}, "queue": "team-a"},
        ),
        (
            {"scheduler": "coscheduling", "min_member": 2, "schedule_timeout": 30},
            COSCHEDULING_POD_GROUP,
            {"minMember": 2, "minResources": {"cpu": "4"}, "scheduleTimeoutSeconds": 30},
        ),
    ],
)
def test_the_pod_group_has_the_job_s_name_and_goes_with_it(
    step: Any, hands: Any, scheduling: Any, kind: Kind, spec: Any
) -> None:
    run = step(scheduling=scheduling, num_nodes=3, cpu="2")
    found = hands.until(lambda: hands.find(kind, run.job))
    assert found["spec"] == spec
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner["uid"] == hands.job(run.job)["metadata"]["uid"]
    assert not owner["controller"]
    hands.delete(PYTORCHJOB, run.job)
    run.wait()
    hands.until(lambda: hands.find(kind, run.job) is None)


def test_an_elastic_job_that_shrank_below_its_gang_is_adopted(
    step: Any, hands: Any, says: Any
) -> None:
    given = {
        "scheduling": {**VOLCANO, "min_member": 3},
        "num_nodes": 3,
        "elastic": {"min_nodes": 1, "max_nodes": 4},
    }
    first = step(**given)
    hands.until(lambda: hands.find(VOLCANO_POD_GROUP, first.job))
    hands.change_job(
        first.job, lambda job: job["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=2)
    )
    again = step(**given)
    says("adopted")
    hands.ended(first.job, 0, role="worker")
    hands.set_conditions(first.job, "Created", "Running=False", "Succeeded")
    first.succeeded()
    again.succeeded()


def test_the_operator_s_own_pod_group_is_left_alone(
    step: Any, hands: Any, monkeypatch: Any
) -> None:
    ensure = schedulers.ensure_pod_group

    def operator_is_first(kube: Any, kind: Any, inputs: Any, job: Any, limits: Any) -> None:
        made = group_of(VOLCANO_POD_GROUP, job["metadata"]["name"], job["metadata"]["uid"])
        hands.server.run(_create(hands.server.api, made))
        ensure(kube, kind, inputs, job, limits)

    monkeypatch.setattr(schedulers, "ensure_pod_group", operator_is_first)
    run = step(scheduling=VOLCANO, num_nodes=3)
    hands.success(run.job)
    run.succeeded()
    assert hands.find(VOLCANO_POD_GROUP, run.job)["spec"]["minMember"] == 1


async def _create(api: Any, made: Any) -> None:
    api.create(VOLCANO_POD_GROUP, made)


def test_a_cluster_without_the_scheduler_is_told_of_before_there_is_a_job(
    step: Any, hands: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("kfp_pytorch.launcher.kubernetes.client.Kube.serves", lambda *_: False)
    run = step(scheduling=VOLCANO)
    said = run.failed(InputError)
    assert "the cluster has no PodGroup of scheduling.volcano.sh/v1beta1" in said
    assert hands.jobs() == []


def test_a_step_that_may_make_no_pod_group_leaves_no_job(step: Any, hands: Any) -> None:
    said = 'User "steps" cannot create resource "podgroups" in API group "scheduling.volcano.sh"'
    hands.fault(Answer(403, "Forbidden", said), "create", "*/podgroups*", times=9)
    run = step(scheduling=VOLCANO)
    run.failed(Forbidden)
    assert hands.jobs() == []


def test_a_queue_that_does_not_suspend_its_job_is_told_of(
    step: Any, hands: Any, told: list[str]
) -> None:
    run = step(scheduling={"scheduler": "kueue", "queue": "team-a"})
    hands.job(run.job)
    hands.until(lambda: any("and Kueue did not suspend it" in line for line in told))


@pytest.mark.parametrize(
    ("how", "suspend", "deaf"),
    [("created", False, True), ("created", True, False), ("adopted", False, False)],
)
def test_only_a_new_job_that_is_not_suspended_shows_a_deaf_queue(
    how: str, suspend: bool, deaf: bool
) -> None:
    inputs = parse_inputs(image="i", scheduling={"scheduler": "kueue", "queue": "team-a"})
    job = manifest(inputs, job_name="j", labels={}, annotations={}, owner=None)
    job["spec"]["runPolicy"]["suspend"] = suspend
    said = schedulers.not_queued(PYTORCH_JOB, Ensured(job, how, 1))
    assert ("kubeflow.org/pytorchjob in integrations.frameworks" in said) == deaf


@pytest.mark.skipif(not records.FOLDER.exists(), reason="no records of a real cluster")
@pytest.mark.parametrize(
    ("record", "kind", "deaf"),
    [
        ("pj-off", PYTORCH_JOB, True),
        ("pj-wait", PYTORCH_JOB, False),
        ("tj-wait", TRAIN_JOB, False),
    ],
)
def test_a_real_kueue_says_it_with_the_answer_to_the_create(
    record: str, kind: JobKind, deaf: bool
) -> None:
    made = [
        event["object"]["answer"]
        for event in records.events(f"kueue/{record}")
        if event["type"] == "REQUEST" and event["object"].get("status") == 201
    ]
    assert made
    for job in made:
        assert bool(schedulers.not_queued(kind, Ensured(job, "created", 1))) == deaf
