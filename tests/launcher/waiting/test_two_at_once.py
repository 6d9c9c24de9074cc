"""Two things that come at once, of which one could be taken for the job's end."""

from __future__ import annotations

from typing import Any

from harness.faults.watches import SilentWatch

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.local.apiserver.store.api import Api


def replace(api: Api, name: str) -> None:
    """Puts another job in the place of one."""
    job = api.get(PYTORCHJOB, "default", name)
    api.delete(PYTORCHJOB, "default", name)
    for field in ("uid", "resourceVersion", "creationTimestamp"):
        job["metadata"].pop(field)
    api.create(PYTORCHJOB, job)


def test_a_pull_may_have_gone_on_while_the_server_was_away(
    step: Any, hands: Any, told: list[str], later: Any
) -> None:
    run = step(limits={"pull_grace": 60.0})
    hands.set_conditions(run.job, "Created")
    hands.waiting(run.job, "ErrImagePull", "no answer of the registry")
    hands.until(lambda: any("ErrImagePull" in line for line in told))
    before = hands.count("get", f"pytorchjobs/{run.job}")
    hands.server.go_away(1.0)
    later(run, 70.0)
    hands.until(lambda: hands.count("get", f"pytorchjobs/{run.job}") > before)
    later(run, 0.0)
    hands.running(run.job)
    hands.success(run.job)
    run.succeeded()


def test_a_first_pod_that_the_queue_took_back_is_not_the_end_of_the_job(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    run = step(limits={"final_status": 60.0})
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    says("running")
    hands.suspend(run.job, True)
    hands.set_conditions(run.job, "Created", "Suspended", "Running=False")
    hands.ended(run.job, 143)
    hands.delete(POD, f"{run.job}-master-0")
    says("queued")
    later(run, 70.0)
    hands.suspend(run.job, False)
    hands.set_conditions(run.job, "Created", "Suspended=False", "Running=False")
    says("starting")
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()


def test_a_job_whose_training_ended_in_time_does_not_run_too_long(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    run = step(limits={"run": 60.0, "start": 60.0, "final_status": 600.0})
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    says("running")
    hands.ended(run.job, 0)
    hands.until(lambda: hands.count("get", f"pytorchjobs/{run.job}"))
    later(run, 70.0)
    hands.success(run.job)
    run.succeeded()


def test_another_job_of_the_same_name_is_not_ours(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Running")
    hands.server.call(replace, hands.server.api, run.job)
    assert "deleted" in run.failed(JobFailed)
    assert len(hands.jobs()) == 1, "the other one was touched"


def test_a_job_that_succeeded_before_another_took_its_name_has_succeeded(
    step: Any, hands: Any
) -> None:
    hands.fault(SilentWatch(), "watch", times=1)
    run = step(limits={"watch_idle": 3.0})
    hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: hands.server.faults.struck())
    api = hands.server.api

    def succeed_and_replace() -> None:
        job = api.get(PYTORCHJOB, "default", run.job)
        job["status"]["conditions"] = [{"type": "Succeeded", "status": "True"}]
        api.update(PYTORCHJOB, job, "status")
        replace(api, run.job)

    hands.server.call(succeed_and_replace)
    run.succeeded()
    assert len(hands.jobs()) == 1, "the other one was touched"
