"""What goes wrong between the step and the API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import (
    Answer,
    Forbidden,
    Reset,
    Stall,
    status,
)
from harness.faults.watches import (
    DuplicateEvents,
    EndWatch,
    InsertEvent,
    ReorderEvents,
    SilentWatch,
    WithholdLast,
    expired_watch,
)
from harness.hands import connected

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.launcher.errors import CannotObserve, JobFailed, PermissionMissing

CRD_GONE = "the server could not find the requested resource"
WEBHOOK_GONE = (
    '{"kind": "Status", "reason": "NotFound", "details": {"name": "webhook", "kind": "services"}}'
)


def runs(step: Any, hands: Any, on: Any = None, **limits: float) -> Any:
    """A step whose job runs, with its watch open."""
    run = step(limits=limits, on=on)
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    return run


@pytest.mark.parametrize(
    "action",
    [
        EndWatch(),
        EndWatch(after_events=1),
        EndWatch(cut=True),
        SilentWatch(),
        Stall(after_bytes=40),
        Reset(),
        Reset(after_bytes=40),
        Answer(500),
        Answer(503),
        Answer(429, retry_after=1),
        Answer(410),
        Answer(404),
        Answer(502, body="<html>bad gateway</html>"),
        DuplicateEvents(),
        ReorderEvents(),
        WithholdLast(),
        expired_watch(),
        expired_watch(code=410, reason="Gone"),
        expired_watch(code=500, reason="InternalError"),
        expired_watch(code=401, reason="Unauthorized"),
        InsertEvent("BOOKMARK", {"kind": "PyTorchJob", "metadata": {"resourceVersion": "1001"}}),
        InsertEvent("NEWS", {"kind": "PyTorchJob", "metadata": {"name": "x"}}),
        InsertEvent("MODIFIED", {"kind": "Status", "status": "Failure", "metadata": {}}),
        InsertEvent("MODIFIED", {"kind": "ConfigMap", "metadata": {"name": "pytorch-job"}}),
        InsertEvent("MODIFIED", {"kind": "PyTorchJob", "metadata": ["x"]}),
        InsertEvent("DELETED", {"kind": "Status", "metadata": {}}),
    ],
    ids=repr,
)
def test_no_kind_of_broken_watch_hides_the_end(step: Any, hands: Any, action: Any) -> None:
    hands.fault(action, "watch", times=None)
    run = runs(step, hands)
    hands.until(lambda: hands.server.faults.struck())
    assert run.going
    hands.success(run.job, metrics={"accuracy": 1.0})
    run.succeeded()
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


@pytest.mark.parametrize(
    "action",
    [
        Answer(500),
        Answer(503),
        Answer(504),
        Answer(429, retry_after=0),
        Answer(404, message=CRD_GONE),
        Answer(404, body=WEBHOOK_GONE),
        Answer(410),
        Answer(400),
        Answer(502, body="<html>bad gateway</html>"),
        Reset(),
        Reset(after_bytes=20),
        Stall(),
        Stall(after_bytes=20),
        Answer(200, body='{"kind": "Status", "metadata": {}}'),
        Answer(200, body='{"kind": "PyTorchJob", "metad'),
    ],
    ids=repr,
)
def test_reads_that_fail_for_a_while_fail_no_healthy_job(
    step: Any, hands: Any, hasty: Any, action: Any
) -> None:
    hands.fault(EndWatch(), "watch", times=None)
    hands.fault(action, "get", times=2, skip=1)
    run = runs(step, hands, on=hasty)
    hands.until(lambda: hands.server.faults.struck() > 3)
    hands.success(run.job)
    run.succeeded()


def test_a_server_that_restarts_is_waited_for(step: Any, hands: Any) -> None:
    run = runs(step, hands)
    hands.until(lambda: hands.count("watch", "/pytorchjobs"))
    seen = hands.count("get", "/pytorchjobs/")
    hands.server.go_away(0.6)
    hands.until(lambda: hands.count("get", "/pytorchjobs/") > seen)
    hands.success(run.job)
    run.succeeded()


def test_a_server_that_never_comes_back_leaves_the_job_alone(
    step: Any, hands: Any, impatient: Any
) -> None:
    hands.fault(EndWatch(), "watch", times=None)
    run = runs(step, hands, on=impatient)
    hands.fault(Answer(503), "get", times=None)
    hands.fault(Answer(503), "list", "*", times=None)
    words = run.failed(CannotObserve)
    assert "Could not observe" in words
    assert "left as it is" in words
    assert len(hands.jobs()) == 1
    assert hands.count("delete", "pytorchjobs") == 0


def test_a_crd_that_is_gone_for_good_is_no_deleted_job(step: Any, hands: Any) -> None:
    hands.fault(EndWatch(), "watch", times=None)
    run = runs(step, hands, unavailability_budget=0.5)
    hands.fault(Answer(404, message=CRD_GONE), "get", times=None)
    run.failed(CannotObserve)
    assert len(hands.jobs()) == 1


def test_410_three_times_running_loses_neither_the_job_nor_the_limits(
    step: Any, hands: Any
) -> None:
    hands.fault(expired_watch(), "watch", times=3)
    hands.fault(Answer(410), "watch", times=3)
    run = runs(step, hands, run=1.0)
    assert "(timeout)" in run.failed(JobFailed)


def test_a_watch_that_may_not_be_opened_is_fatal_and_leaves_no_job(step: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "watch", times=None)
    run = step()
    assert "watch pytorchjobs" in run.failed(PermissionMissing)
    hands.until(lambda: hands.jobs() == [])


def test_a_job_that_is_adopted_is_not_deleted_for_what_this_try_may_not_do(
    step: Any, hands: Any
) -> None:
    first = runs(step, hands)
    hands.until(lambda: hands.count("watch", "/pytorchjobs"))
    hands.fault(Forbidden(), "watch", times=None)
    assert "watch pytorchjobs" in step(on=connected(hands.server)).failed(CannotObserve)
    hands.server.faults.clear()
    hands.success(first.job)
    first.succeeded()


def test_pods_that_may_not_be_listed_are_fatal_and_named(step: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "list", "*/pods", times=None)
    assert "list pods" in step().failed(PermissionMissing)
    hands.until(lambda: hands.jobs() == [])


@pytest.mark.parametrize(
    ("verb", "path"), [("watch", "*/pods"), ("get", "*/log"), ("list", "*/events")]
)
def test_what_a_result_does_not_need_may_be_forbidden(
    step: Any, hands: Any, verb: str, path: str
) -> None:
    hands.fault(Forbidden(), verb, path, times=None)
    run = runs(step, hands)
    hands.until(lambda: hands.server.faults.struck())
    hands.success(run.job, metrics={"accuracy": 1.0})
    run.succeeded()
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


@pytest.mark.parametrize("answer", [Answer(400), Answer(404), Answer(500), Forbidden()], ids=repr)
def test_logs_that_cannot_be_read_hide_no_failure(step: Any, hands: Any, answer: Any) -> None:
    hands.fault(answer, "get", "*/log", times=None)
    run = runs(step, hands, gather=2.5)
    hands.ended(run.job, 137)
    hands.set_conditions(run.job, "Failed: it was killed")
    words = run.failed(JobFailed)
    assert "it was killed" in words
    assert "137" in words


@pytest.mark.parametrize("answer", [Answer(500), Answer(200, body="<html>"), Answer(200, body=" ")])
def test_a_delete_that_fails_at_first_is_tried_again(step: Any, hands: Any, answer: Any) -> None:
    hands.fault(answer, "delete", times=2)
    run = runs(step, hands)
    hands.set_conditions(run.job, "Failed")
    run.failed(JobFailed)
    hands.until(lambda: hands.jobs() == [])


def test_a_delete_that_finds_nothing_changes_no_outcome(step: Any, hands: Any) -> None:
    hands.fault(Answer(404, body=_not_found()), "delete")
    run = runs(step, hands)
    hands.set_conditions(run.job, "Failed: it broke")
    assert "it broke" in run.failed(JobFailed)


def test_a_delete_that_collides_with_a_writer_is_made_again(step: Any, hands: Any) -> None:
    hands.fault(Answer(409), "delete", times=2)
    run = runs(step, hands)
    hands.set_conditions(run.job, "Failed: it broke")
    assert "it broke" in run.failed(JobFailed)
    hands.until(lambda: hands.jobs() == [])


def test_a_retry_replaces_a_failed_job_though_its_delete_collides_at_first(
    step: Any, hands: Any
) -> None:
    first = step(cleanup="never")
    old = hands.set_conditions(first.job, "Failed")
    first.failed(JobFailed)
    hands.fault(Answer(409), "delete")
    second = step()
    hands.until(lambda: old["metadata"]["uid"] not in [j["metadata"]["uid"] for j in hands.jobs()])
    hands.success(second.job)
    second.succeeded()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [(Answer(401), "does not accept the credentials"), (Forbidden(), "may not")],
)
def test_access_that_is_lost_while_a_job_runs_leaves_it_to_a_retry(
    step: Any, hands: Any, says: Any, impatient: Any, refusal: Any, said: str
) -> None:
    run = runs(step, hands, on=impatient)
    # What it says it has by a watch.
    says("running")
    hands.until(lambda: hands.count("get", "/log"))
    for verb in ("get", "watch"):
        hands.fault(refusal, verb, times=None)
    hands.server.go_away(0.05)
    words = run.failed(CannotObserve)
    assert said in words
    assert "left as it is" in words
    assert len(hands.jobs()) == 1


def test_clocks_that_disagree_shorten_no_limit(step: Any, hands: Any) -> None:
    hands.server.set_clock(7200)
    run = runs(step, hands, run=3600, start=3600)
    hands.until(lambda: hands.count("get", "/log"))
    assert run.going
    again = step(limits={"run": 3600, "start": 3600})
    hands.until(lambda: hands.count("get", "/log") > 1)
    assert again.going
    hands.success(run.job)
    run.succeeded()
    again.succeeded()


def test_a_broken_stdout_ends_nothing(
    step: Any, hands: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Broken:
        def write(self, _: str) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Broken())
    monkeypatch.setattr("sys.stderr", Broken())
    run = runs(step, hands)
    hands.log(hands.running(run.job), ["2025-11-27T12:00:00Z a line"])
    hands.success(run.job)
    run.succeeded()


def _not_found() -> str:
    import json

    return json.dumps(status(404, "NotFound", "pytorchjobs not found") | {"details": {"name": "x"}})


def test_a_server_that_is_away_when_the_job_has_succeeded_loses_no_result(
    step: Any, hands: Any
) -> None:
    hands.fault(EndWatch(), "watch", "*/pods", times=None)
    run = runs(step, hands, gather=0.2, slow_interval=60)
    hands.until(lambda: hands.count("get", "/log"))
    hands.fault(Answer(503), "list", "*/pods", times=8)
    hands.success(run.job, metrics={"accuracy": 1.0})
    run.succeeded()
    assert run.outputs.metrics.metadata == {"accuracy": 1.0}


def test_a_report_that_cannot_be_made_does_not_hide_why_the_job_failed(
    step: Any, hands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> str:
        raise TypeError("what is this?")

    monkeypatch.setattr("kfp_pytorch.launcher.steps.job.render", broken)
    run = runs(step, hands)
    hands.set_conditions(run.job, "Failed: it broke")
    assert "it broke" in run.failed(JobFailed)


def test_an_operator_that_goes_silent_at_the_end_leaves_the_job_to_be_looked_at_again(
    step: Any, hands: Any
) -> None:
    run = runs(step, hands, final_status=0.5)
    hands.ended(run.job, 0)
    words = run.failed(CannotObserve)
    assert "has not said how" in words
    assert "left as it is" in words
    assert len(hands.jobs()) == 1


def test_a_deletion_that_never_comes_to_its_end_is_not_waited_for_for_ever(
    step: Any, hands: Any
) -> None:
    run = runs(step, hands, deletion=0.5)
    hands.change_job(run.job, lambda job: job["metadata"].update(finalizers=["test/hold"]))
    hands.delete(PYTORCHJOB, run.job)
    assert "was deleted while it ran" in run.failed(JobFailed)
