"""A pod's phase, conditions and log from what its containers do."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.local.controllers.kubelet.pod_status import ContainerState, phase, pod_status
from kfp_pytorch.local.controllers.kubelet.process import LogFile, tail

NOW = datetime(2025, 1, 2, tzinfo=UTC)

WAITING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
RUNNING: dict[str, Any] = {"running": {}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def state(current: dict[str, Any], last: dict[str, Any] | None = None) -> ContainerState:
    return ContainerState("c", "i", current, last or {})


@pytest.mark.parametrize(
    ("initial", "main", "policy", "expected"),
    [
        ([], [state(WAITING)], "Never", "Pending"),
        ([], [state(RUNNING)], "Never", "Running"),
        ([], [state(RUNNING), state(WAITING)], "Never", "Pending"),
        ([], [state(RUNNING), state(ended(1))], "Never", "Running"),
        ([], [state(WAITING, ended(1))], "OnFailure", "Running"),
        ([], [state(ended(0)), state(ended(0))], "Never", "Succeeded"),
        ([], [state(ended(0)), state(ended(1))], "Never", "Failed"),
        ([state(RUNNING)], [state(WAITING)], "Never", "Pending"),
        ([state(WAITING, ended(1))], [state(WAITING)], "OnFailure", "Pending"),
        ([state(ended(1))], [state(WAITING)], "Never", "Failed"),
        ([state(ended(0))], [state(RUNNING)], "Never", "Running"),
    ],
)
def test_a_pods_phase_follows_from_its_containers_and_its_restart_policy(
    initial: list[ContainerState], main: list[ContainerState], policy: str, expected: str
) -> None:
    assert phase(initial, main, policy) == expected


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status["conditions"]}


def test_conditions_follow_the_containers_and_keep_the_time_of_their_last_change() -> None:
    pod: dict[str, Any] = {"spec": {"restartPolicy": "Never"}, "status": {}}
    main = state(RUNNING)
    pod["status"] = pod_status(pod, [], [main], NOW)
    assert conditions(pod["status"])["Ready"] == ("False", "ContainersNotReady")
    main.ready = True
    later = datetime(2025, 1, 3, tzinfo=UTC)
    pod["status"] = pod_status(pod, [], [main], later)
    assert conditions(pod["status"])["Ready"] == ("True", "")
    times = {each["type"]: each["lastTransitionTime"] for each in pod["status"]["conditions"]}
    assert times["Ready"] == "2025-01-03T00:00:00Z"
    assert times["PodScheduled"] == pod["status"]["startTime"] == "2025-01-02T00:00:00Z"
    main.state, main.ready = ended(0), False
    status = pod_status(pod, [], [main], later)
    assert conditions(status)["Ready"] == ("False", "PodCompleted")
    assert conditions(status)["Initialized"] == ("True", "PodCompleted")


def test_a_waiting_init_container_is_named() -> None:
    status = pod_status({"spec": {}}, [state(RUNNING)], [state(WAITING)], NOW)
    (initialized,) = [each for each in status["conditions"] if each["type"] == "Initialized"]
    assert initialized["reason"] == "ContainersNotInitialized"
    assert initialized["message"] == "containers with incomplete status: [c]"


def test_each_line_of_a_log_has_its_time_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = LogFile(path)
    log.write(b"one\ntw")
    assert path.read_bytes().count(b"\n") == 1
    log.write(b"o\n\nx\ry\n" + b"z" * 20_000)
    log.close()
    lines = path.read_bytes().split(b"\n")
    stamp = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z stdout [FP] ")
    assert all(stamp.match(line) for line in lines[:-1])
    texts = [line.split(b" ", 3)[2:] for line in lines[:-1]]
    assert texts == [
        [b"F", b"one"],
        [b"F", b"two"],
        [b"F", b""],
        [b"F", b"x\ry"],
        [b"P", b"z" * 16_384],
        [b"F", b"z" * (20_000 - 16_384)],
    ]


def test_the_tail_of_a_log_is_text(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = LogFile(path)
    log.write(b"".join(b"line %d\n" % number for number in range(1000)))
    log.close()
    assert tail(path, 3, 2048) == "line 997\nline 998\nline 999\n"
    assert tail(path, 80, 10) == "\nline 999\n"
    assert tail(tmp_path / "none", 3, 2048) == ""
