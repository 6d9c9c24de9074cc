"""What a step says while a new revision comes up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import EVENT
from kfp_pytorch.launcher.kserve.deploy import Timing
from kfp_pytorch.launcher.kserve.phases import images_being_pulled, phase

Object = dict[str, Any]
Start = Callable[..., Any]
Until = Callable[..., Any]
KServe = Any
RUNNING = {"running": {"startedAt": "2025-11-27T12:00:00Z"}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING = {"waiting": {"reason": "PodInitializing"}}


def status(name: str, state: Object, ready: bool = False) -> Object:
    made = {"name": name, "image": "i:1", "imageID": "", "ready": ready, "restartCount": 0}
    return made | {"state": state}


SERVER = "kserve-container"
UNFIT = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
STARTING = {"containerStatuses": [status(SERVER, CREATING)]}
FETCHING = {
    "initContainerStatuses": [status("storage-initializer", RUNNING)],
    "containerStatuses": [status(SERVER, INITIALIZING)],
}
LOADING = {
    "initContainerStatuses": [status("storage-initializer", {"terminated": {"exitCode": 0}}, True)],
    "containerStatuses": [status(SERVER, RUNNING)],
}


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ([], ""),
        ([{}], "starting"),
        ([{"conditions": [UNFIT]}], "pending"),
        ([STARTING], "starting"),
        ([FETCHING], "fetching the model"),
        ([LOADING], "loading the model"),
        ([{"containerStatuses": [status(SERVER, RUNNING, True)]}], ""),
        ([LOADING, FETCHING], "fetching the model"),
        ([LOADING, {"conditions": [UNFIT]}], "pending"),
    ],
)
def test_pods_are_as_far_as_the_last_of_them(statuses: list[Object], said: str) -> None:
    assert phase([{"status": each} for each in statuses]) == said


def pull(reason: str, image: str) -> Object:
    return {"reason": reason, "message": f'Successfully or not {reason} image "{image}" in 3 s'}


def test_an_image_is_pulled_until_the_kubelet_says_otherwise() -> None:
    events = [pull("Pulling", "a:1"), pull("Pulled", "a:1"), pull("Pulling", "b:1")]
    assert images_being_pulled(events) == ["b:1"]
    assert images_being_pulled([*events, pull("Pulled", "b:1")]) == []


def test_a_person_reads_each_phase_once(
    quick: Timing, kserve: KServe, start: Start, until: Until, capsys: Any
) -> None:
    step = start(replace(quick, pull_interval=0.0))
    until(kserve.service)
    assert step.goes_on()
    carried = kserve.rolls_out(available=0)
    kserve.pod(carried, phase="Pending", conditions=[UNFIT | {"message": "0/3 nodes"}])
    assert step.goes_on()
    about = {"name": "digits-predictor-1", "namespace": "default"}
    pulling = {
        "metadata": {"name": "a", "namespace": "default"},
        "involvedObject": about,
        "type": "Normal",
        "reason": "Pulling",
        "message": 'Pulling image "big:1"',
    }
    kserve._create(EVENT, pulling)
    for now in (STARTING, FETCHING, LOADING):
        kserve.pod_says(phase="Pending", **now)
        assert step.goes_on()
    kserve.serves()
    step.succeeded()
    said = [line[11:] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    # A pod that has only just been made has no status yet.
    said = [line for line in said if not line.startswith("starting")]
    phases = [line.partition(":")[0] for line in said]
    assert phases[1:6] == [
        "waiting for the controller to take up the new spec",
        "pending",
        "pulling the image big",
        "fetching the model",
        "loading the model",
    ]
    assert "0/3 nodes" in said[2]
