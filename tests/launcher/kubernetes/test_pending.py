"""Queues, gangs and autoscalers: what a person reads while a job waits, and when it gave up."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes import pending as reasons
from kfp_pytorch.launcher.waiting.evidence import Evidence

NO_QUOTA = "couldn't assign flavors to pod set master: insufficient unused quota for nvidia.com/gpu"
GANG = "2/0 tasks in gang unschedulable: pod group is not ready, 2 minAvailable"
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def event(reason: str, message: str, kind: str = "Warning", about: str = "j") -> dict[str, Any]:
    return {
        "type": kind,
        "reason": reason,
        "message": message,
        "involvedObject": {"name": about},
    }


def pending(index: int, message: str = NO_GPU) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    labels = {"training.kubeflow.org/replica-type": "worker"}
    labels["training.kubeflow.org/replica-index"] = str(index)
    return {
        "metadata": {"name": f"j-worker-{index}", "labels": labels},
        "status": {"phase": "Pending", "conditions": [condition | {"message": message}]},
    }


def test_the_first_pod_that_waits_is_named_with_the_schedulers_words_and_the_rest_counted() -> None:
    said = reasons.reason(PYTORCH_JOB.in_order([pending(2), pending(0), pending(1)]), [])
    assert said == f"j-worker-0 and 2 more: Unschedulable: {NO_GPU}"


@pytest.mark.parametrize(
    ("reason", "tail"),
    [
        ("TriggeredScaleUp", "; the autoscaler is adding nodes (pod triggered scale-up: [a 0->2])"),
        ("NotTriggerScaleUp", "; the autoscaler adds no node (pod triggered scale-up: [a 0->2])"),
    ],
)
def test_what_the_autoscaler_makes_of_it_is_told_with_it(reason: str, tail: str) -> None:
    events = [event(reason, "pod triggered scale-up: [a 0->2]", "Normal", "j-worker-0")]
    assert reasons.reason([pending(0)], events).endswith(tail)


def test_the_autoscalers_last_word_counts() -> None:
    events = [
        event("NotTriggerScaleUp", "1 max node group size reached", "Normal"),
        event("TriggeredScaleUp", "a 0->2", "Normal"),
    ]
    assert "is adding nodes" in reasons.reason([pending(0)], events)


def test_news_that_explains_no_waiting_is_not_told() -> None:
    events = [
        event("Unschedulable", GANG),
        event("SuccessfulCreatePod", "Created pod: j-master-0", "Normal"),
        event("CreatedWorkload", "Created Workload: team/pytorchjob-j-1a2b3", "Normal"),
    ]
    assert reasons.reason([], events) == f"Unschedulable: {GANG}"
    assert reasons.reason([], events[1:]) == ""


def test_the_queues_words_are_read_from_the_jobs_own_workload(
    step: Any, hands: Any, told: list[str]
) -> None:
    with hands.unanswered():
        run = step(limits={"queue": 1.5})
        hands.suspend(run.job, True)
        hands.event(f"pytorchjob-{run.job}-1a2b3", "Pending", NO_QUOTA, kind="Workload")
        hands.event("pytorchjob-another-1a2b3", "Pending", "another job's words", kind="Workload")
    hands.until(lambda: [line for line in told if line.startswith("still queued")])
    hands.until(lambda: [line for line in told if NO_QUOTA in line])
    said = run.failed(JobFailed)
    assert said.startswith("The job is suspended: it still waits in its queue (Pending: couldn't")
    assert "queue_timeout" in said
    assert not [line for line in told if "another job's words" in line]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([event("PyTorchJobSuspended", "", "Normal")], "no event says that Kueue made a Workload"),
        ([event("CreatedWorkload", "", "Normal")], "it still waits in its queue"),
        # Events may not be read, or are gone.
        ([], "it still waits in its queue"),
    ],
)
def test_a_suspended_job_of_which_kueue_made_no_workload_says_so(
    events: list[dict[str, Any]], said: str
) -> None:
    labels = {"kueue.x-k8s.io/queue-name": "team-a"}
    job = {"metadata": {"name": "j", "labels": labels}, "spec": {"runPolicy": {"suspend": True}}}
    evidence = Evidence(PYTORCH_JOB, job=job, events=events)
    assert said in diagnose(evidence, "It waited 60 s in its queue.").message.splitlines()[0]


def test_a_gang_that_is_not_let_in_is_told_in_the_gang_schedulers_words(
    step: Any, hands: Any, told: list[str]
) -> None:
    """Volcano lets no pod be made before its PodGroup, which has the job's name, is let in."""
    with hands.unanswered():
        run = step(limits={"start": 1.5}, num_nodes=2)
        hands.set_conditions(run.job, "Created")
        hands.event(run.job, "Unschedulable", GANG, kind="PodGroup")
    hands.until(lambda: [line for line in told if GANG in line])
    said = run.failed(JobFailed)
    assert said.startswith(f"The job's pods are not let in (Unschedulable): {GANG}.\nWhat to do: ")
    assert "starts all pods together or none" in said


def test_an_operator_that_makes_no_pods_is_what_to_look_at(step: Any, hands: Any) -> None:
    with hands.unanswered():
        run = step(limits={"start": 0.5}, num_nodes=2)
        hands.set_conditions(run.job, "Created")
    said = run.failed(JobFailed).splitlines()[0]
    assert "none of its 2 pods was made: nothing says why, so look at the Training Operator" in said


def of(why: str, cause: str, **seen: Any) -> list[str]:
    created = {"type": "Created", "status": "True"}
    job = {"metadata": {"name": "j"}, "spec": {}, "status": {"conditions": [created]}}
    return diagnose(Evidence(PYTORCH_JOB, **{"job": job} | seen), cause, why).message.splitlines()


def restarted_once() -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    running = {"name": "pytorch", "restartCount": 1, "state": {"running": {}}, "lastState": ended}
    return {
        "metadata": {"name": "j-master-0"},
        "status": {"phase": "Running", "containerStatuses": [running]},
    }


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("run", "Raise timeout"),
        ("lost", "ask who may"),
        ("deletion", "finalizers"),
        ("start", "raise start_timeout"),
        ("queue", "raise queue_timeout"),
        ("acknowledge", "Check that the operator runs"),
    ],
)
def test_what_ended_the_wait_comes_first_and_not_what_an_earlier_restart_was_about(
    why: str, advice: str
) -> None:
    lines = of(why, "It took too long", pods={"j-master-0": restarted_once()})
    assert lines[0] == "It took too long."
    assert advice in lines[1]
    assert any("ended with exit code 1, after 1 restart over all pods" in line for line in lines)
    assert sum("It took too long" in line for line in lines) == 1


def test_what_is_so_now_is_why_a_limit_is_over() -> None:
    lines = of("start", "It did not start", pods={"j-worker-0": pending(0)})
    assert lines[0] == f"No node takes j-worker-0 (1 of 1 pods). The scheduler says: {NO_GPU}"
    assert "Ask for less nvidia.com/gpu, use fewer nodes" in lines[1]
    assert "- It did not start" in lines


@pytest.mark.parametrize("why", ["run", "start"])
def test_a_container_that_keeps_crashing_is_why_a_limit_is_over(why: str) -> None:
    pod = restarted_once()
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    lines = of(why, "It took too long", pods={"j-master-0": pod})
    assert lines[0] == "j-master-0 ended with exit code 1, after 1 restart over all pods."
    assert "- It took too long" in lines
