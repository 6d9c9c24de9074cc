from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes.pod_failures import crashes
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.timeline import Timeline

NOW = datetime(2025, 11, 27, 18, 0, tzinfo=UTC)


def job(*conditions: tuple[str, str], workers: int = 1) -> dict[str, Any]:
    """A job with conditions that are True, each with the minute after noon that it began."""
    replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": workers}}
    written = [
        {"type": kind, "status": "True", "lastTransitionTime": f"2025-11-27T12:{minute}:00Z"}
        for kind, minute in conditions
    ]
    return {
        "metadata": {"name": "j", "creationTimestamp": "2025-11-27T11:59:00Z"},
        "spec": {"pytorchReplicaSpecs": replicas},
        "status": {"conditions": written},
    }


def pod(index: int, node: str = "", code: int = 0, phase: str = "Running") -> dict[str, Any]:
    placed = {
        "type": "PodScheduled", "status": "True",
        "lastTransitionTime": f"2025-11-27T12:10:{index:02}Z",
    }  # fmt: skip
    ended = {
        "terminated": {
            "exitCode": code, "reason": "Error", "finishedAt": f"2025-11-27T13:00:{index % 60:02}Z",
        }
    }  # fmt: skip
    status = {"name": "pytorch", "restartCount": 1, "state": {}, "lastState": ended}
    return {
        "metadata": {"name": f"j-worker-{index}", "uid": f"u{index}"},
        "spec": {"nodeName": node},
        "status": {
            "phase": phase,
            "conditions": [placed] if node else [],
            "containerStatuses": [status] if code else [],
        },
    }


def lived(*states: dict[str, Any]) -> Evidence:
    evidence = Evidence(PYTORCH_JOB, job=states[0])
    timeline, previous = Timeline(evidence, lambda: NOW), None
    for state in states:
        timeline.record_job(state, PYTORCH_JOB.read_state(state), previous)
        previous = PYTORCH_JOB.read_state(state)
    return evidence


def told(evidence: Evidence) -> list[str]:
    return [f"{entry.time:%H:%M} {entry.what}" for entry in evidence.timeline]


def test_a_life_is_told_from_the_creation_to_the_end_with_the_clusters_own_times() -> None:
    evidence = lived(
        job(),
        job(("Suspended", "01")),
        job(("Created", "05")),
        job(("Created", "05"), ("Running", "06")),
        job(("Created", "05"), ("Running", "06")),
        job(("Created", "05"), ("Restarting", "20")),
        job(("Created", "05"), ("Running", "25")),
        job(("Created", "05"), ("Succeeded", "50")),
    )
    assert told(evidence) == [
        "11:59 created",
        "12:01 queued",
        "12:05 admitted",
        "12:06 running",
        "12:20 restarted",
        "12:25 running",
        "12:50 succeeded",
    ]


def test_it_is_scheduled_once_the_last_of_its_pods_has_a_node() -> None:
    evidence = Evidence(PYTORCH_JOB, job=job(workers=2))
    timeline = Timeline(evidence, lambda: NOW)
    timeline.record_pods([pod(0, "a"), pod(1, "b"), pod(2)])
    assert told(evidence) == []
    for _ in range(2):
        timeline.record_pods([pod(0, "a"), pod(1, "b"), pod(2, "a")])
    (entry,) = evidence.timeline
    assert (f"{entry.time:%H:%M:%S}", entry.detail) == ("12:10:02", "3 pods on a and b")


def test_the_restarts_of_many_pods_at_once_are_one_entry_that_names_the_first() -> None:
    evidence = Evidence(PYTORCH_JOB, job=job())
    timeline = Timeline(evidence, lambda: NOW)
    for index in range(50):
        failed = pod(index, "a", code=137)
        timeline.record_crashes(failed, crashes(failed))
    (entry,) = evidence.timeline
    assert entry.what == "restarted"
    assert entry.detail == "j-worker-0: Error exit code 137 (SIGKILL) (and 49 more)"


def test_a_container_of_a_pod_that_failed_was_not_restarted() -> None:
    evidence = Evidence(PYTORCH_JOB, job=job())
    failed = pod(0, "a", code=1, phase="Failed")
    Timeline(evidence, lambda: NOW).record_crashes(failed, crashes(failed))
    assert [entry.what for entry in evidence.timeline] == ["ended"]


def test_the_first_and_the_last_of_very_many_entries_are_kept() -> None:
    evidence = lived(job())
    timeline = Timeline(evidence, lambda: NOW)
    for number in range(1000):
        timeline.enter("restarted", str(number))
    assert len(evidence.timeline) <= 400
    assert evidence.timeline[0].what == "created"
    assert evidence.timeline[-1].detail == "999"


def test_times_that_are_missing_or_of_no_zone_break_nothing() -> None:
    odd = job(("Running", "06"))
    odd["metadata"]["creationTimestamp"] = "2025-11-27T11:59:00"
    odd["status"]["conditions"][0]["lastTransitionTime"] = "soon"
    assert told(lived(odd)) == ["11:59 created", "18:00 running"]


@pytest.mark.parametrize(
    ("policy", "phase", "restarts", "what"),
    [
        # The kubelet writes the end about a second before the phase.
        ("Never", "Running", 0, "ended"),
        ("Never", "Failed", 0, "ended"),
        ("OnFailure", "Running", 0, "restarted"),
        ("OnFailure", "Running", 1, "restarted"),
        ("", "Running", 0, "restarted"),
    ],
)
def test_the_restart_policy_decides_what_follows_the_end_of_a_container(
    policy: str, phase: str, restarts: int, what: str
) -> None:
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2025-11-27T13:00:00Z"}}
    states = {"state": {"running": {}}, "lastState": ended} if restarts else {"state": ended}
    failed = pod(0, "gpu-1", phase=phase)
    failed["spec"]["restartPolicy"] = policy
    failed["status"]["containerStatuses"] = [{"name": "pytorch", "restartCount": restarts} | states]
    evidence = Evidence(PYTORCH_JOB)
    Timeline(evidence, lambda: NOW).record_crashes(failed, crashes(failed))
    assert [entry.what for entry in evidence.timeline] == [what]
