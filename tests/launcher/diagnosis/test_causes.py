"""The order of causes, and what is listed as seen."""

from __future__ import annotations

from typing import Any

import pytest
from harness.objects.evident import container, end, event, job, of, pod

from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.evidence import Evidence

CRASHED = container(state={"running": {}}, lastState=end(1), restarts=1)
UNFIT = {
    "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1: 1 Insufficient c"}],
    "phase": "Pending",
}
LIMIT = "It did not run within 600 s"


@pytest.mark.parametrize(
    ("why", "pods", "order"),
    [
        ("failed", [pod(0, CRASHED), pod(1, on="", **UNFIT)], ["No node takes", "exit code 1"]),
        ("start", [pod(0, CRASHED), pod(1, on="", **UNFIT)], ["No node takes", LIMIT, "exit code"]),
        ("start", [pod(0, CRASHED)], [LIMIT, "exit code 1"]),
        ("lost", [pod(0, CRASHED), pod(1, on="", **UNFIT)], [LIMIT, "No node takes", "exit code"]),
    ],
)
def test_the_end_of_the_wait_comes_first_unless_something_that_is_so_now_explains_it(
    why: str, pods: list[dict[str, Any]], order: list[str]
) -> None:
    evidence = Evidence(PYTORCH_JOB, job=job(), pods={p["metadata"]["name"]: p for p in pods})
    message = diagnose(evidence, LIMIT, why).message
    places = [message.find(part) for part in order]
    assert -1 not in places
    assert places == sorted(places)


def test_events_that_repeat_a_condition_or_a_pods_end_are_left_out() -> None:
    ended = "Error pod j-master-0 container pytorch exitCode: 1 terminated message: Traceback"
    events = [
        event("j", "PyTorchJobRestarting", "PyTorchJob j is restarting because 1 replica failed"),
        event("j", "Error", ended),
        *(event(f"j-worker-{i}", f"Reason{i}", "w" * 1_000) for i in range(5)),
    ]
    message = of(events=events).message
    assert "PyTorchJobRestarting" not in message
    assert "terminated message" not in message
    assert message.count("- event ") == 3
    assert all(len(line) < 300 for line in message.splitlines())


def test_a_condition_that_the_first_line_quotes_is_not_listed_again() -> None:
    words = 'job "j" is failing because "Master" replica(s) failed.'
    failed = {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed", "message": words}
    evidence = Evidence(PYTORCH_JOB, job=job(status={"conditions": [failed]}))
    message = diagnose(evidence, f"PyTorchJob j failed: PyTorchJobFailed: {words}").message
    assert message.count(words.rstrip(".")) == 1


def test_events_of_one_trouble_are_told_once_with_their_number() -> None:
    words = "Back-off restarting failed container pytorch in pod {}"
    events = [event(f"j-worker-{i}", "BackOff", words.format(f"j-worker-{i}")) for i in range(4)]
    events.append(event("j-worker-0", "BackOff", 'Back-off pulling image "nope"'))
    message = of(events=events).message
    assert message.count("event BackOff of") == 2
    assert "in pod j-worker-3 (the last of 4 such events)" in message
