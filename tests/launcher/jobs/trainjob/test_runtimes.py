"""A runtime that cannot run a job is refused before the job is made."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.trainjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.trainjob.runtimes import check_runtime


def runtime(*jobs: str, container: str = "node") -> dict[str, Any]:
    parts = [
        {
            "name": name,
            "template": {"spec": {"template": {"spec": {"containers": [{"name": container}]}}}},
        }
        for name in jobs
    ]
    return {"spec": {"template": {"spec": {"replicatedJobs": parts}}}}


def test_a_runtime_with_what_the_job_needs_passes() -> None:
    given = parse_inputs(dataset_initializer={"storage_uri": "cache://schema/table"})
    check_runtime(runtime("dataset-initializer", "node"), given, "j" * 33)


@pytest.mark.parametrize(
    ("found", "name", "words"),
    [
        (runtime("node", container="main"), "j", "has no job 'node' with a container 'node'"),
        ({}, "j", "has no job 'node'"),
        (runtime("node"), "j", "has no job 'dataset-initializer'"),
        (runtime("node", "dataset-initializer"), "j" * 34, "1 characters shorter"),
    ],
)
def test_a_runtime_without_it_is_refused(found: dict[str, Any], name: str, words: str) -> None:
    given = parse_inputs(dataset_initializer={"storage_uri": "s3://bucket/x"})
    with pytest.raises(InputError, match=words):
        check_runtime(found, given, name)


def gang(**policy: Any) -> dict[str, Any]:
    made = runtime("node")
    made["spec"]["podGroupPolicy"] = policy
    return made


def scheduled_by(name: str) -> dict[str, Any]:
    made = runtime("node")
    (job,) = made["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["schedulerName"] = name
    return made


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (gang(volcano={}), "volcano (by the runtime's podGroupPolicy.volcano)"),
        (gang(coscheduling={"scheduleTimeoutSeconds": 9}), "podGroupPolicy.coscheduling"),
        (scheduled_by("kai-scheduler"), "kai (by the pods of the runtime, their schedulerName"),
    ],
)
def test_a_runtime_with_a_scheduler_is_not_for_a_job_of_another(
    found: dict[str, Any], place: str
) -> None:
    check_runtime(found, parse_inputs(), "j")
    queue = {"kueue.x-k8s.io/queue-name": "q"}
    for inputs in (
        {"scheduling": {"scheduler": "kueue", "queue": "q"}},
        {"labels": queue},
        {"managed_by": "kueue.x-k8s.io/multikueue"},
    ):
        with pytest.raises(InputError, match="The job is for kueue") as caught:
            check_runtime(found, parse_inputs(**inputs), "j")
        assert place in caught.value.message


def test_the_queue_of_volcano_is_named_for_a_runtime_with_its_gang() -> None:
    given = parse_inputs(annotations={"scheduling.volcano.sh/queue-name": "q"})
    check_runtime(gang(volcano={}), given, "j")
