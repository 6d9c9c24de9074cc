"""What the status of a TrainJob says of it, whatever is missing in it or old."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.jobs.trainjob import state
from kfp_pytorch.launcher.kubernetes.objects import Object

SUSPENDED = {"type": "Suspended", "status": "True", "reason": "Suspended"}
RESUMED = {"type": "Suspended", "status": "False", "reason": "Resumed"}
COMPLETE = {"type": "Complete", "status": "True", "reason": "AllJobsCompleted"}
FAILED = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "jobset failed"}


def job(*conditions: Object, spec: Object | None = None, **numbers: int) -> Object:
    status: Object = {"conditions": list(conditions)} if conditions else {}
    if numbers:
        status["jobsStatus"] = [{"name": "node", **numbers}]
    return {"metadata": {"name": "j"}, "spec": spec or {}, "status": status}


@pytest.mark.parametrize(
    ("obj", "phase"),
    [
        ({}, Phase.UNACKNOWLEDGED),
        ({"status": None, "spec": None}, Phase.UNACKNOWLEDGED),
        (job(), Phase.UNACKNOWLEDGED),
        (job(spec={"suspend": True}), Phase.QUEUED),
        (job(SUSPENDED, active=1, ready=1), Phase.QUEUED),
        # It says so until the Trainer has seen that it was resumed.
        (job(SUSPENDED, suspended=1), Phase.QUEUED),
        (job(RESUMED), Phase.STARTING),
        (job(RESUMED, active=1, ready=1), Phase.RUNNING),
        (job(RESUMED, COMPLETE, succeeded=1), Phase.SUCCEEDED),
        (job(SUSPENDED, FAILED), Phase.FAILED),
        (job(active=0), Phase.STARTING),
        (job(active=1, ready=0), Phase.STARTING),
        (job(active=1, ready=1), Phase.RUNNING),
        # Of a job that has just ended, the numbers are old.
        (job(active=0, ready=1), Phase.STARTING),
        (job(COMPLETE, active=1, ready=1), Phase.SUCCEEDED),
        (job(FAILED, active=1, ready=1), Phase.FAILED),
        ({"status": {"jobsStatus": [{"name": "node", "active": "1"}]}}, Phase.STARTING),
        (
            {"status": {"jobsStatus": [{"name": "dataset-initializer", "active": 1, "ready": 1}]}},
            Phase.STARTING,
        ),
    ],
)
def test_a_status_is_read_as_a_phase(obj: Object, phase: Phase) -> None:
    assert state.read_state(obj).phase is phase


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"trainer": {"numNodes": 3}}, 3),
        ({"trainer": {"numNodes": 3}, "initializer": {"dataset": {}, "model": {}}}, 5),
        ({"trainer": {"numNodes": 3}, "managedBy": state.MANAGER}, 3),
        ({"trainer": {"numNodes": 3}, "managedBy": "kueue.x-k8s.io/multikueue"}, 0),
    ],
)
def test_the_pods_that_are_waited_for_are_the_nodes_and_the_initializers(
    spec: Object, pods: int
) -> None:
    assert state.expected_pods(job(spec=spec)) == pods


def pod(name: str, role: str = "node", index: int = 0, **metadata: Any) -> Object:
    labels = {
        state.JOBSET_LABEL: "j",
        state.JOB_LABEL: role,
        state.INDEX_LABEL: str(index),
    }
    return {"metadata": {"name": name, "labels": labels, **metadata}}


def test_the_pod_of_an_initializer_is_no_node() -> None:
    pods = [pod("j-dataset-initializer-0-0-a", "dataset-initializer"), pod("j-node-0-1-b", index=1)]
    assert state.first_pod({}, pods) == ""
    assert [state.node_of({}, each) for each in pods] == [-1, 1]


def test_of_two_pods_of_node_0_the_newest_that_stays_is_the_first_pod() -> None:
    old = pod("j-node-0-0-a", creationTimestamp="2026-01-01T00:00:01Z")
    new = pod("j-node-0-0-b", creationTimestamp="2026-01-01T00:00:02Z")
    assert state.first_pod({}, [new, old]) == "j-node-0-0-b"
    new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
    assert state.first_pod({}, [new, old]) == "j-node-0-0-a"
