"""Whether a failure's message offers the job's folder to resume from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.objects.evident import container, end, job, of, pod

OFFER = "The job's folder, for resume_from: pvc://claim/j"


def told(**known: Any) -> str:
    error = {"rank": 0, "time": 1.0, "type": "ValueError", "message": "no", "traceback": ""}
    return json.dumps({"version": 1, "status": "failed", **known, "error": error})


# What a script leaves before its end.
LEFT = json.dumps({"version": 1, "status": "succeeded", "metrics": {}})
LEFT_AT_3 = json.dumps({"version": 1, "status": "succeeded", "metrics": {}, "checkpoint": 3})
NONE = told(checkpoint=None)
NEVER_RAN = container(state={"waiting": {"reason": "ImagePullBackOff"}})


@pytest.mark.parametrize(
    ("status", "attempt", "offered"),
    [
        (container(state=end(1)), "1", ""),
        (container(state=end(1, message=LEFT)), "1", ""),
        (container(state=end(0, message=LEFT)), "1", ""),
        (container(state=end(137)), "1", f"{OFFER} (if it wrote a checkpoint)"),
        (
            container(state=end(137, message=LEFT_AT_3)),
            "1",
            f"{OFFER} (its newest checkpoint is of step 3)",
        ),
        (container(state={"running": {}}), "1", f"{OFFER} (if it wrote a checkpoint)"),
        (NEVER_RAN, "2", f"{OFFER} (if it wrote a checkpoint)"),
        (NEVER_RAN, "1", ""),
        (container(state=end(1, message=NONE)), "1", ""),
        (container(state=end(1, message=told())), "1", f"{OFFER} (if it wrote a checkpoint)"),
        (
            container(state=end(137), lastState=end(1, message=NONE)),
            "1",
            f"{OFFER} (if it wrote a checkpoint)",
        ),
        (
            container(state=end(1, message=told(checkpoint=7)), lastState=end(1, message=NONE)),
            "1",
            f"{OFFER} (its newest checkpoint is of step 7)",
        ),
    ],
)
def test_the_folder_is_offered_to_resume_from_where_a_checkpoint_may_be_in_it(
    status: dict[str, Any], attempt: str, offered: str
) -> None:
    tried = job(2)
    tried["metadata"]["annotations"] = {"kfp-pytorch/attempt": attempt}
    message = of(pod(0, status), job=tried, folder="pvc://claim/j").message
    assert [part for part in message.split("\n\n") if "resume_from" in part] == (
        [offered] if offered else []
    )
    assert offered or status is NEVER_RAN or "The job's folder is pvc://claim/j." in message
