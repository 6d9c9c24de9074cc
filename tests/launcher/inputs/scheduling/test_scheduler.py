"""What `scheduling` may say, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.scheduler import Scheduling, read


@pytest.mark.parametrize("unset", [None, "", "None", {}, [], "null"])
def test_unset_asks_for_nothing(unset: Any) -> None:
    assert read("scheduling", unset) == Scheduling()
    assert not Scheduling()


def test_each_scheduler_has_its_own_fields_and_name() -> None:
    asked = {"scheduler": "yunikorn", "queue": "root.a", "min_member": 3.0, "gang_style": "Soft"}
    found = read("scheduling", asked)
    assert (found.queue, found.min_member, found.gang_style) == ("root.a", 3, "Soft")
    assert found.pods_scheduler == "yunikorn"
    assert read("scheduling", {"scheduler": "kueue", "queue": "q"}).pods_scheduler == ""
    other = {"scheduler": "coscheduling", "scheduler_name": "default-scheduler"}
    assert read("scheduling", other).pods_scheduler == "default-scheduler"
    assert read("scheduling", {"priority_class": "high"}) == Scheduling(priority_class="high")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("team-a", "write an object, such as kueue"),
        ({"scheduler": "slurm"}, "'slurm'; it must be one of kueue, volcano"),
        ({"scheduler": ["kueue", "volcano"]}, "a job has one"),
        ({"scheduler": "kueue,volcano"}, "a job has one"),
        ({"scheduler": "kueue"}, "has no queue"),
        ({"scheduler": "kueue", "queue": "a/b"}, "queue is 'a/b'"),
        ({"scheduler": "kueue", "queue": "team_a"}, "queue is 'team_a'; it must be at most 253"),
        (
            {"scheduler": "kueue", "queue": "q", "min_member": 2},
            "which the scheduler 'kueue' does",
        ),
        ({"scheduler": "coscheduling", "queue": "q"}, "it takes priority_class, min_member"),
        ({"scheduler": "volcano", "schedule_timeout": 5}, "which the scheduler 'volcano' does not"),
        ({"queue": "q"}, "no scheduler; give one of kueue, volcano, kai, yunikorn"),
        ({"scheduler": "volcano", "gang": False, "min_member": 2}, "drop one"),
        ({"scheduler": "kai", "min_member": -1}, "min_member is -1"),
        ({"scheduler": "yunikorn", "gang_style": "hard"}, "must be one of Hard, Soft"),
        ({"priority_class": "A B"}, "priority_class is 'A B'"),
        ({"priority": "high"}, "unknown field 'priority'"),
        ({"scheduler": "kueue", "queue": "q", "pod_failure_policy": {}}, "is no scheduler's"),
        ({"success_policy": "AllWorkers"}, "of kubeflow_job"),
    ],
)
def test_what_no_scheduler_could_do_is_refused(asked: Any, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        read("scheduling", asked)
