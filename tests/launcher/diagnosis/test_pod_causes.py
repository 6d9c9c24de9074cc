"""What goes wrong with a job's pods, and while the step looks at them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Answer, Forbidden, Reset, Stall
from harness.faults.watches import (
    EndWatch,
    InsertEvent,
    SilentWatch,
    expired_watch,
)
from harness.hands import IMPATIENT, connected
from harness.objects.played import container, end

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.errors import CannotObserve, JobFailed
from kfp_pytorch.launcher.kubernetes.pod_status import node_lost

PODS = "*/pods"


def succeeds(run: Any, hands: Any) -> None:
    """The job runs, and its success brings its result."""
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.server.faults.struck())
    hands.until(lambda: hands.count("get", "/log"))
    assert run.going, run.error
    hands.success(run.job, metrics={"accuracy": 1.0})
    run.succeeded()
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


@pytest.mark.parametrize(
    "action",
    [
        EndWatch(cut=True),
        SilentWatch(),
        Stall(after_bytes=40),
        Reset(),
        Answer(410),
        Answer(404),
        expired_watch(),
        InsertEvent("MODIFIED", {}),
        InsertEvent("MODIFIED", {"kind": "Pod", "metadata": {}}),
        InsertEvent("DELETED", {"kind": "Status", "metadata": {}}),
    ],
    ids=repr,
)
def test_no_kind_of_broken_watch_loses_the_result(step: Any, hands: Any, action: Any) -> None:
    hands.fault(action, "watch", PODS, times=None)
    succeeds(step(), hands)


@pytest.mark.parametrize(
    "action", [Answer(400), Answer(404), Answer(410), Answer(503), Reset(after_bytes=20)], ids=repr
)
def test_lists_that_fail_for_a_while_lose_no_result(step: Any, hands: Any, action: Any) -> None:
    hands.fault(action, "list", PODS, times=3)
    succeeds(step(limits={"start": 60.0}), hands)


def test_a_result_that_was_seen_counts_though_pods_may_not_be_read_at_the_end(
    step: Any, hands: Any
) -> None:
    run = step()
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", "/log") and hands.count("watch", "/pods"))
    result = {"version": 1, "status": "succeeded", "metrics": {"accuracy": 1.0}}
    reads = hands.count("get", f"pytorchjobs/{run.job}")
    hands.ended(run.job, 0, json.dumps(result))
    # The launcher reads the job a second after it has seen that the first pod ended.
    hands.until(lambda: hands.count("get", f"pytorchjobs/{run.job}") > reads)
    hands.fault(Forbidden(), "list", PODS, times=None)
    hands.set_conditions(run.job, "Created", "Running=False", "Succeeded")
    run.succeeded()
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


def test_pods_that_were_not_read_before_the_end_leave_the_result_to_a_retry(
    step: Any, hands: Any
) -> None:
    hands.fault(Answer(503), "watch", PODS, times=None)
    on = connected(hands.server, IMPATIENT)
    run = step(limits={"slow_interval": 60.0, "log_idle": 60.0}, on=on)
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", "/log") and hands.count("list", "/pods"))
    hands.fault(Forbidden(), "list", PODS, times=None)
    hands.success(run.job, metrics={"accuracy": 1.0})
    assert "list pods" in run.failed(CannotObserve)
    hands.server.faults.clear()
    again = step()
    again.succeeded()
    assert again.outputs.metrics.metadata == {"accuracy": 1.0}


def test_what_pods_said_that_went_while_the_server_was_away_is_learned_from_its_history(
    step: Any, hands: Any
) -> None:
    run = step(clean_pod_policy="All")
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", "/log") and hands.count("watch", "/pods"))
    hands.server.go_away(0.6)
    master = f"{run.job}-master-0"
    hands.ended(run.job, 0, '{"version": 1, "status": "succeeded", "metrics": {"accuracy": 1.0}}')
    hands.delete(POD, master)
    hands.until(lambda: hands.find(POD, master) is None)
    hands.set_conditions(run.job, "Created", "Running=False", "Succeeded")
    run.succeeded()
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


def test_pods_that_the_server_does_not_remember_are_said_to_have_gone(
    step: Any, hands: Any, told: list[str]
) -> None:
    hands.fault(Answer(410), "watch", PODS, times=None)
    run = step(clean_pod_policy="All", limits={"slow_interval": 60.0, "quick_interval": 60.0})
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", "/log"))
    hands.delete(POD, f"{run.job}-master-0")
    hands.set_conditions(run.job, "Created", "Running=False", "Succeeded")
    run.succeeded()
    (words,) = [line for line in told if "The result of training is not known" in line]
    assert "clean_pod_policy 'Running'" in words


def test_a_container_that_came_up_at_the_second_try_is_in_no_trouble(step: Any, hands: Any) -> None:
    run = step(limits={"config_grace": 0.0})
    failed = {"exitCode": 128, "reason": "StartError", "message": "device or resource busy"}
    again = container(restarts=1, running={}, lastState={"terminated": failed})
    hands.pod(run.job, phase="Running", containerStatuses=[again])
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", "/log"))
    assert run.going, run.error
    hands.success(run.job)
    run.succeeded()


def test_a_container_that_never_comes_up_still_is(step: Any, hands: Any) -> None:
    run = step()
    failed = {"exitCode": 128, "reason": "StartError", "message": "exec: no such file"}
    hands.waiting(run.job, "CrashLoopBackOff", restarts=3, lastState={"terminated": failed})
    hands.set_conditions(run.job, "Created", "Running")
    assert "no such file" in run.failed(JobFailed)


def test_a_pod_that_stays_on_a_node_that_is_gone_is_not_waited_for_without_end(
    step: Any, hands: Any, told: list[str], says: Any, later: Any, clock: Any
) -> None:
    def hold(pod: Any) -> None:
        pod["metadata"].update(finalizers=["test/hold"])

    run = step(limits={"start": 60.0}, num_nodes=2)
    hands.set_conditions(run.job, "Created", "Running")
    hands.running(run.job)
    held = hands.running(run.job, "worker")["metadata"]["name"]
    says("running")

    def lose(pod: Any) -> None:
        lost = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
        pod["status"]["conditions"] = [lost]

    hands.server.call(hands.server.api.mutate, POD, "default", held, hold)
    hands.server.call(hands.server.api.mutate, POD, "default", held, lose, "status")
    later(run, 70.0)
    told.clear()
    hands.delete(POD, held)
    hands.until(lambda: [line for line in told if "1 of 2 pods run" in line])
    clock.ahead += 70.0
    words = run.failed(JobFailed)
    assert "start_timeout" in words
    assert f"{held}: it is being deleted, and does not go while node-1 cannot be reached" in words


def test_crashes_that_are_only_restarted_are_told_though_the_job_says_running(
    step: Any, hands: Any, told: list[str]
) -> None:
    run = step(num_nodes=2, limits={"progress_interval": 30.0})
    hands.set_conditions(run.job, "Created", "Running")
    for restarts in range(1, 4):
        for role in ("master", "worker"):
            last = {"terminated": end(1)}
            crashed = container(restarts=restarts, running={}, lastState=last)
            hands.pod(run.job, role, phase="Running", containerStatuses=[crashed])
    hands.until(lambda: [line for line in told if line.startswith("restarted: ")])
    assert run.going, run.error
    hands.success(run.job)
    run.succeeded()
    lines = [line for line in told if line.startswith("restarted: ")]
    assert re.search(f"{run.job}-(master|worker)-0: Error exit code 1", lines[0])
    assert len(lines) < 6


@pytest.mark.parametrize("unsaid", [{}, {"uid": None}])
def test_a_job_that_comes_without_its_uid_is_not_taken_for_another(
    step: Any, hands: Any, unsaid: Any
) -> None:
    run = step()
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("watch", "/pytorchjobs"))
    stripped = {"kind": "PyTorchJob", "metadata": {"name": run.job, **unsaid}}
    hands.fault(InsertEvent("MODIFIED", stripped), "watch")
    hands.server.go_away(0.05)
    hands.until(lambda: hands.server.faults.struck())
    time.sleep(0.3)
    assert run.going, run.error
    hands.success(run.job)
    run.succeeded()


def test_a_pod_that_was_deleted_and_not_made_again_is_not_said_to_run(
    step: Any, hands: Any
) -> None:
    with hands.unanswered():
        run = step(num_nodes=2, limits={"start": 0.8})
        hands.running(run.job)
        worker = hands.running(run.job, "worker")["metadata"]["name"]
        hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("watch", "/pods"))
    hands.delete(POD, worker)
    said = run.failed(JobFailed)
    assert "1 of 2 pods ran" in said.splitlines()[0]
    assert f"{worker} on node-1: Running, now gone" in said


def test_a_pod_on_a_node_that_is_lost_is_why_the_job_does_not_run(step: Any, hands: Any) -> None:
    words = "Node gpu-1 which was running the pod is unresponsive"
    with hands.unanswered():
        run = step(limits={"start": 0.8})
        hands.set_conditions(run.job, "Created", "Running")
        hands.pod(run.job, phase="Unknown", reason="NodeLost", message=words)
    assert run.failed(JobFailed).splitlines()[0].endswith(f"(NodeLost): {words}.")


def test_a_job_that_failed_in_its_queue_is_not_said_to_wait_there(step: Any, hands: Any) -> None:
    run = step()
    hands.suspend(run.job, True)
    hands.set_conditions(run.job, "Created", "Suspended", "Failed: deactivated by its queue")
    said = run.failed(JobFailed)
    assert "deactivated by its queue" in said.splitlines()[0]
    assert "still waits in its queue" not in said


def test_pods_that_are_refused_beside_others_that_run_are_told(step: Any, hands: Any) -> None:
    words = "maximum cpu usage per Container is 1, but limit is 4"
    with hands.unanswered():
        run = step(num_nodes=3, limits={"start": 0.8})
        hands.set_conditions(run.job, "Created")
        hands.running(run.job)
        hands.event(run.job, "FailedCreatePod", f"Error creating: {words}")
    said = run.failed(JobFailed).splitlines()
    assert words in said[0]
    assert "LimitRange" in said[1]


@pytest.mark.parametrize("reason", ["", "NodeStatusUnknown"])
def test_a_node_that_is_lost_under_a_running_pod_is_told_at_once(
    step: Any, hands: Any, told: list[str], reason: str
) -> None:
    def news() -> str:
        return ["", *(line for line in told if not line.startswith("still"))][-1]

    run = step(num_nodes=2)
    hands.running(run.job)
    worker = hands.running(run.job, "worker")["metadata"]["name"]
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: news().startswith("running"))
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2025-11-27T12:07:00Z"}
    whole = {"type": "ContainersReady", "status": "True"}
    lost = [ready | ({"reason": reason} if reason else {}), whole]
    hands.pod(run.job, "worker", phase="Running", conditions=lost)
    hands.until(lambda: news() == f"running, node lost ({worker} on node-1)")
    hands.pod(run.job, "worker", phase="Running", conditions=[ready | {"status": "True"}, whole])
    hands.until(lambda: news() == "running")
    hands.pod(run.job, "worker", phase="Running", conditions=lost)
    hands.until(lambda: news().endswith(f"node lost ({worker} on node-1)"))
    hands.set_conditions(run.job, "Running=False", "Failed: a replica failed")
    said = run.failed(JobFailed)
    assert said.splitlines()[0] == f"{worker} was lost with its node: node-1 is not ready any more."
    assert f"{worker} on node-1: Running, node lost" in said
    report = Path(run.outputs.report.path).read_text()
    assert "node lost" in report
    assert f"node-1, of {worker}" in report


def test_a_pod_that_its_kubelet_calls_not_ready_is_on_no_lost_node() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    assert not node_lost({"status": {"conditions": [ready]}})
    assert not node_lost({"status": {"conditions": [{"type": "Ready", "status": "False"}]}})
