"""Pods that no node takes, or that their node does not start."""

from __future__ import annotations

from typing import Any

import pytest
from harness.objects.evident import container, event, first_line, of, pod

from kfp_pytorch.launcher.kubernetes import pending

TAINT = "3 node(s) had untolerated taint {nvidia.com/gpu: present}"


def unfit(words: str) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False", "message": words}
    return pod(0, on="", phase="Pending", conditions=[scheduled])


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Scheduling is blocked due to non-empty scheduling gates", ["spec.schedulingGates"]),
        (f"0/3 nodes are available: {TAINT}.", ["Name the taint in tolerations"]),
        (f"0/5 nodes are available: 2 Insufficient cpu, {TAINT}.", ["less cpu", "tolerations"]),
        ("0/3: 3 node(s) didn't match Pod's node affinity/selector.", ["node_selector"]),
        ("0/3 nodes are available: 3 Too many pods.", ["reached their limit of pods"]),
        ("0/3 nodes are available: 3 node(s) were unschedulable.", ["kubectl uncordon"]),
        ('persistentvolumeclaim "c" is being deleted', ["create another"]),
        ("1 node has pod using a claim with ReadWriteOncePod access mode", ["ReadWriteMany"]),
        ("no words that are known", ["kubectl describe nodes"]),
    ],
)
def test_each_reason_of_the_scheduler_comes_with_its_own_advice(
    words: str, advice: list[str]
) -> None:
    what_to_do = of(unfit(words)).message.splitlines()[1]
    assert all(part in what_to_do for part in advice)


def test_what_preemption_would_do_is_no_reason_of_its_own() -> None:
    words = f"0/3 nodes are available: {TAINT}. preemption: 0/3: 3 Insufficient cpu."
    assert "less cpu" not in of(unfit(words)).message


@pytest.mark.parametrize(
    "preemption",
    [
        " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.",
        # Kubernetes 1.34
        " no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption "
        "victims found for incoming pod.",
    ],
)
def test_the_schedulers_reasons_end_where_its_words_on_preemption_begin(preemption: str) -> None:
    reasons = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    found = of(unfit(f"{reasons}.{preemption}"))
    assert first_line(found).endswith(f"The scheduler says: {reasons}.")
    assert "less nvidia.com/gpu" in found.message


CREATING = container(state={"waiting": {"reason": "ContainerCreating"}})


@pytest.mark.parametrize(
    ("reason", "words", "headline", "advice"),
    [
        ("FailedMount", 'secret "t" not found', "A volume of j-master-0 is not there", "Secret"),
        ("FailedCreatePodSandBox", 'plugin type="calico" failed', "The node of j-master-0 cannot "
         "start pods", "network plugin"),
    ],
)  # fmt: skip
def test_a_container_that_is_only_being_created_is_explained_by_its_pods_events(
    reason: str, words: str, headline: str, advice: str
) -> None:
    stuck, events = pod(0, CREATING, phase="Pending"), [event("j-master-0", reason, words)]
    assert pending.reason([stuck], events) == f"j-master-0: {reason}: {words}"
    found = of(stuck, events=events)
    assert first_line(found) == f"{headline} ({reason}): {words}."
    assert advice in found.message.splitlines()[1]
    assert pending.reason([stuck], [event("j-worker-0", reason, words)]) == (
        "j-master-0: ContainerCreating"
    )


@pytest.mark.parametrize("state", ["terminated", "waiting"])
def test_an_init_container_that_fails_is_told_with_what_it_waits_for(state: str) -> None:
    failed = {"exitCode": 1, "reason": "Error"}
    status = container("init-pytorch", 4, state={"terminated": failed})
    if state == "waiting":
        last = {"lastState": {"terminated": failed}}
        status |= last | {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    found = of(pod(1, init=(status,), phase="Pending"))
    assert (
        first_line(found) == "j-worker-0: the init container 'init-pytorch' fails with exit code 1."
    )
    assert "first node's name" in found.message.splitlines()[1]


def test_an_init_container_that_its_pods_deletion_ended_explains_nothing() -> None:
    killed = container("init-pytorch", state={"terminated": {"exitCode": 137, "reason": "Error"}})
    deleted = pod(1, init=(killed,), phase="Failed")
    deleted["metadata"]["deletionTimestamp"] = "2025-11-27T12:00:00Z"
    assert "init-pytorch' fails" not in of(deleted).message


def test_an_init_container_that_failed_once_explains_nothing() -> None:
    failed = {"terminated": {"exitCode": 1, "reason": "Error"}}
    status = container("init-pytorch", 1, state={"terminated": {"exitCode": 0}}, lastState=failed)
    assert "init-pytorch' fails" not in of(pod(1, CREATING, init=(status,))).message


def test_pods_that_no_scheduler_has_looked_at_name_the_one_they_are_for() -> None:
    waiting = pod(0, on="", phase="Pending")
    waiting["spec"]["schedulerName"] = "volcano"
    found = of(waiting)
    assert first_line(found) == (
        "No scheduler has looked at j-master-0 (1 of 1 pods), which are for 'volcano'."
    )
    assert "Is a scheduler of that name installed" in found.message
    waiting["spec"]["schedulerName"] = "default-scheduler"
    assert "No scheduler" not in of(waiting).message
