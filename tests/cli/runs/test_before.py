"""What is said before the first step of a run on this machine."""

from __future__ import annotations

import pytest

from kfp_pytorch.cli.runs import before
from kfp_pytorch.client.packages.known_tasks import KnownTask

MOUNTED = {"volumeMounts": [{"name": "data", "mountPath": "/mnt/data"}]}


def task(function="", **inputs):
    return KnownTask("t", function, inputs, frozenset(), {}, "exec-t", certain=True)


@pytest.mark.parametrize(
    ("pods", "of", "said"),
    [
        ({"exec-t": MOUNTED}, task(), True),
        ({"exec-t": MOUNTED}, task(folder="/mnt/database"), True),
        ({"exec-t": MOUNTED}, task(folder="/mnt/data/train"), False),
        ({}, task("pytorch_job", task_config=MOUNTED), True),
        ({}, task("pytorch_job", pod_template_patch={"spec": {"containers": [MOUNTED]}}), True),
        ({}, task("pytorch_job", task_config=MOUNTED, args=["--data=/mnt/data"]), False),
        ({}, task("pytorch_job", task_config=MOUNTED, hyperparameters={"d": "/mnt/data"}), False),
    ],
)
def test_a_mount_is_named_that_only_the_code_of_a_step_or_a_job_can_have_the_path_of(
    pods, of, said
):
    lines = list(before.mounts(pods, [of]))
    assert len(lines) == said
    assert all("task t: a path in its code" in line and "/mnt/data" in line for line in lines)
