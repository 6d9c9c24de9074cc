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
