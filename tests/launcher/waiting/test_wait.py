"""What a job, its pods and its events may do while it is waited for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from harness.faults.watches import SilentWatch
from harness.hands import container, end

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits

PODS = "*/namespaces/default/pods"


def test_a_pull_that_works_again_is_looked_at_before_it_is_given_up(
    step: Any, hands: Any, clock: Any, later: Any
) -> None:
    run = step(limits={"watch_idle": 300.0, "slow_interval": 300.0, "pull_grace": 60.0})
    hands.set_conditions(run.job, "Created")
    hands.waiting(run.job, "ImagePullBackOff", "Back-off pulling image train:1")
    hands.until(lambda: hands.count("watch", "/pods"))
    hands.fault(SilentWatch(), "watch", PODS, times=None)
    before = {path: hands.count("watch", path) for path in ("/pods", "/pytorchjobs")}
    hands.server.go_away(0.05)
    hands.until(lambda: all(hands.count("watch", path) > before[path] for path in before))
    later(run, 0.0)  # A server that was away for long, as on a busy machine, begins it anew.
    again = hands.count("watch", "/pods")
    hands.running(run.job)
    clock.ahead += 70.0
    hands.until(lambda: hands.count("watch", "/pods") > again)
    assert run.going, run.error
    hands.success(run.job)
    run.succeeded()


def test_failed_ends_the_step_at_once_though_the_master_runs(step: Any, hands: Any) -> None:
    run = step(num_nodes=2)
    hands.running(run.job)
    hands.ended(run.job, 1, role="worker")
    hands.set_conditions(
        run.job, "Created", "Failed: worker 0 failed", replicaStatuses={"Master": {"active": 1}}
    )
    assert "worker 0 failed" in run.failed(JobFailed)
    hands.until(lambda: hands.find(POD, f"{run.job}-master-0") is None)


def test_a_success_with_a_failed_worker_is_a_loud_one(
    step: Any, hands: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = step(num_nodes=2)
    hands.set_conditions(run.job, "Succeeded", replicaStatuses={"Worker": {"failed": 1}})
    run.succeeded()
    assert "pods of it failed: 1 Worker" in Path(run.outputs.report.path).read_text()
    assert "pods of it failed: 1 Worker" in capsys.readouterr().out


@pytest.mark.parametrize("suspended", [(), ("Created",), ("Created", "Suspended")])
def test_time_in_the_queue_counts_for_no_other_limit(
    step: Any, hands: Any, told: list[str], says: Any, later: Any, suspended: tuple[str, ...]
) -> None:
    run = step(limits={"acknowledge": 60.0, "start": 60.0, "run": 60.0})
    hands.suspend(run.job, True)
    if suspended:
        hands.set_conditions(run.job, *suspended)
    says("queued")
    later(run, 70.0)
    hands.suspend(run.job, False)
    hands.set_conditions(run.job, "Suspended=False")
    hands.running(run.job)
    hands.set_conditions(run.job, "Suspended=False", "Running")
    says("running")
    told.clear()
    hands.suspend(run.job, True)
    hands.set_conditions(run.job, "Suspended", "Running=False")
    says("queued")
    later(run, 70.0)
    hands.set_conditions(run.job, "Suspended=False", "Running=False", "Succeeded")
    run.succeeded()


def test_a_queue_that_takes_too_long_is_told_in_the_queues_words(step: Any, hands: Any) -> None:
    with hands.unanswered():
        run = step(limits={"queue": 0.8})
        hands.set_conditions(run.job, "Suspended")
        words = "couldn't assign flavors: insufficient unused quota for gpu"
        hands.event(run.job, "Pending", words)
    words = run.failed(JobFailed)
    assert "queue_timeout" in words
    assert "insufficient unused quota" in words


def test_a_pod_that_fits_nowhere_fails_with_the_schedulers_words(step: Any, hands: Any) -> None:
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }
    with hands.unanswered():
        run = step(limits={"start": 0.8}, num_nodes=2)
        hands.set_conditions(run.job, "Created", "Running")
        hands.running(run.job)
        hands.pod(run.job, "worker", phase="Pending", conditions=[scheduled])
    words = run.failed(JobFailed)
    assert "start_timeout" in words
    assert "3 Insufficient nvidia.com/gpu" in words
    assert f"{run.job}-worker-0" in words


def test_a_job_that_runs_too_long_is_deleted_and_fails(step: Any, hands: Any) -> None:
    run = step(limits={"run": 0.4})
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    assert "(timeout)" in run.failed(JobFailed)
    hands.until(lambda: hands.jobs() == [])


def test_an_adopted_job_has_used_of_its_limit_what_it_ran_before(step: Any, hands: Any) -> None:
    hands.server.set_clock(-3600)
    first = step()
    hands.job(first.job)
    hands.server.set_clock(0)
    hands.running(first.job)
    hands.set_conditions(first.job, "Created", "Running")
    second = step(limits={"run": 1800})
    assert "(timeout)" in second.failed(JobFailed)
    first.failed(JobFailed)


@pytest.mark.parametrize("part", ["containerStatuses", "initContainerStatuses"])
def test_an_image_that_never_comes_fails_after_its_grace(step: Any, hands: Any, part: str) -> None:
    with hands.unanswered():
        run = step(num_nodes=2)
        hands.set_conditions(run.job, "Created")
        hands.waiting(run.job, "ErrImagePull", "denied", part)
        hands.waiting(run.job, "ImagePullBackOff", "Back-off pulling image train:1", part)
    words = run.failed(JobFailed)
    assert "train:1" in words
    assert "Back-off pulling" in words


def test_a_pull_that_fails_once_fails_nothing(step: Any, hands: Any, later: Any) -> None:
    run = step(limits={"pull_grace": 60.0})
    hands.set_conditions(run.job, "Created")
    hands.waiting(run.job, "ErrImagePull")
    hands.until(lambda: hands.count("watch", "/pods"))
    hands.running(run.job)
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()


def test_a_bad_image_name_fails_at_once(step: Any, hands: Any) -> None:
    run = step(limits={"pull_grace": 600, "config_grace": 600})
    hands.set_conditions(run.job, "Created")
    hands.waiting(run.job, "InvalidImageName", "couldn't parse image")
    assert "InvalidImageName" in run.failed(JobFailed)


def test_a_job_deleted_by_a_person_fails_as_deleted(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Running")
    hands.delete(PYTORCHJOB, run.job)
    assert "deleted while" in run.failed(JobFailed)


def test_a_job_that_succeeded_and_went_at_once_has_succeeded(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Running")
    hands.success(run.job)
    hands.delete(PYTORCHJOB, run.job)
    run.succeeded()


def test_the_last_state_is_taken_from_the_event_of_the_deletion(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Running")
    api = hands.server.api

    def succeed_and_go() -> None:
        # In one turn of the server's loop: no read comes between.
        job = api.get(PYTORCHJOB, "default", run.job)
        done = {"type": "Succeeded", "status": "True"}
        job["status"]["conditions"] = [done]
        api.update(PYTORCHJOB, job, "status")
        api.delete(PYTORCHJOB, "default", run.job)

    hands.server.call(succeed_and_go)
    run.succeeded()


def test_memory_over_the_limit_is_named_though_the_pod_is_gone(step: Any, hands: Any) -> None:
    run = step()
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.log(hands.running(run.job), ["2025-11-27T12:00:59Z loading everything"])
    hands.until(lambda: hands.count("get", "/log") >= 1)
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2025-11-27T12:01:00Z"}
    hands.waiting(run.job, "CrashLoopBackOff", restarts=1, lastState={"terminated": killed})
    hands.until(lambda: hands.count("get", "/log") >= 2)
    hands.delete(POD, f"{run.job}-master-0")
    hands.set_conditions(run.job, "Failed: backoff limit exceeded")
    words = run.failed(JobFailed)
    assert "OOMKilled" in words or "out of memory" in words.lower()
    assert "loading everything" in words


def test_the_first_rank_to_fail_is_quoted_with_its_traceback(step: Any, hands: Any) -> None:
    run = step(num_nodes=2)
    hands.running(run.job)
    error = (
        '{"version": 1, "status": "failed", "error": {"rank": 1, "time": 5.0, '
        '"type": "ValueError", "message": "bad batch", "traceback": "Traceback\\n  line 7"}}'
    )
    hands.ended(run.job, 1, error, role="worker")
    hands.set_conditions(run.job, "Failed")
    words = run.failed(JobFailed)
    assert "ValueError" in words
    assert "line 7" in words


def test_pods_of_an_earlier_attempt_explain_nothing(step: Any, hands: Any) -> None:
    run = step()
    hands.job(run.job)
    stale = hands.pod(run.job, phase="Pending")
    stale["metadata"]["ownerReferences"] = []
    hands.set_conditions(run.job, "Created")
    hands.success(run.job, metrics={"loss": 1.0})
    run.succeeded()
    assert run.outputs.metrics.metadata == {"loss": 1.0}


@pytest.mark.parametrize(
    ("cleanup", "after_failure", "after_success"),
    [("on_failure", 0, 1), ("always", 0, 0), ("never", 1, 1)],
)
def test_cleanup_says_when_the_job_goes(
    step: Any, hands: Any, cleanup: str, after_failure: int, after_success: int
) -> None:
    run = step(cleanup=cleanup)
    hands.set_conditions(run.job, "Failed")
    run.failed(JobFailed)
    hands.until(lambda: len(hands.jobs()) == after_failure)
    again = step(cleanup=cleanup)
    hands.until(lambda: [j for j in hands.jobs() if not (j.get("status") or {}).get("conditions")])
    hands.success(again.job)
    again.succeeded()
    hands.until(lambda: len(hands.jobs()) == after_success)


def test_progress_is_said_at_each_change_and_seldom_between(
    step: Any, hands: Any, told: list[str], says: Any
) -> None:
    run = step(limits={"progress_interval": 0.3})
    hands.set_conditions(run.job, "Suspended")
    says("queued")
    says("still queued")
    hands.set_conditions(run.job, "Suspended=False", "Created")
    says("starting: 0 of 1 pods run")
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    says("running")
    hands.success(run.job)
    run.succeeded()
    assert sum(line.startswith("queued") for line in told) == 1
    assert sum(line.startswith("running") for line in told) == 1


def test_a_job_that_merely_runs_is_left_in_peace(step: Any, hands: Any) -> None:
    run = step(limits={"watch_idle": 60, "slow_interval": 60, "log_idle": 60, "poll": 30})
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.count("get", "/log") >= 1)

    def in_peace() -> bool:
        before = len(hands.server.requests)
        time.sleep(1.0)
        return len(hands.server.requests) == before

    hands.until(in_peace, within=15)
    hands.success(run.job)
    run.succeeded()


def test_the_timeline_tells_queue_start_run_and_end(step: Any, hands: Any, says: Any) -> None:
    run = step()
    for conditions, words in (
        (("Suspended",), "queued"),
        (("Suspended=False", "Created"), "starting"),
        (("Created", "Running"), "running"),
    ):
        hands.set_conditions(run.job, *conditions)
        says(words)
    hands.success(run.job)
    run.succeeded()
    report = Path(run.outputs.report.path).read_text()
    for words in ("created", "queued", "admitted", "running", "succeeded"):
        assert f"| {words} |" in report


def test_a_sidecar_that_keeps_the_job_alive_is_named_while_it_does(
    step: Any, hands: Any, told: list[str]
) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Running")
    proxy = container("istio-proxy", running={"startedAt": "2025-11-27T12:00:00Z"})
    done = container(terminated=end(0))
    hands.pod(run.job, phase="Running", containerStatuses=[done, proxy])
    hands.until(lambda: [line for line in told if "istio-proxy runs on" in line])
    assert run.going, run.error
    hands.success(run.job)
    run.succeeded()


def test_kills_that_the_operator_does_not_count_end_the_job_at_the_backoff_limit(
    step: Any, hands: Any
) -> None:
    run = step(num_nodes=2, restart_policy="ExitCode", backoff_limit=2)
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.ended(run.job, 138)
    hands.ended(run.job, 137, role="worker")
    assert "started again 2 times, which is backoff_limit (2)" in run.failed(JobFailed)
    # The operator would go on with it.
    hands.until(lambda: hands.jobs() == [])


def test_of_ends_that_are_started_again_those_that_were_asked_for_do_not_count(kube: Any) -> None:
    spec = {"pytorchReplicaSpecs": {"Master": {"restartPolicy": "ExitCode"}}}
    job = {"metadata": {"name": "j", "uid": "1"}, "spec": spec}
    gatherer = Gatherer(kube, PYTORCH_JOB, job, Limits())
    # The last one was taken back by its queue, and killed when it did not end.
    goes = {"deletionTimestamp": "2025-11-27T12:00:00Z"}
    for number, (code, more) in enumerate([(143, {}), (137, {}), (1, {}), (138, {}), (137, goes)]):
        status = {"name": "pytorch", "state": {"terminated": {"exitCode": code}}}
        owner = {"uid": "1", "controller": True}
        about = {"name": "j-master-0", "uid": f"p{number}", "ownerReferences": [owner], **more}
        gatherer.record_pods([{"metadata": about, "status": {"containerStatuses": [status]}}])
    assert gatherer.recreated == 2
