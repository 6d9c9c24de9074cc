"""Many launchers at one server, and one launcher of a job with many pods."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.hands import connected
from harness.objects.played import container, end

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.waiting.followers import JobFollower, PodsFollower
from kfp_pytorch.launcher.waiting.limits import Limits

WORKERS = 512
# Nothing but what happens makes a launcher ask.
CALM = {
    "poll": 30.0,
    "watch_idle": 60.0,
    "slow_interval": 60.0,
    "log_idle": 60.0,
    "quick_interval": 60.0,
    "progress_interval": 60.0,
    "unavailability_budget": 60.0,
}


@pytest.mark.parametrize("launchers", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_many_launchers_outlive_a_restart_of_the_server_and_none_starves(
    step: Any, hands: Any, launchers: int
) -> None:
    def watches() -> int:
        return hands.count("watch", "/pytorchjobs")

    runs = [
        step(limits=CALM, on=connected(hands.server), task=str(number))
        for number in range(launchers)
    ]
    for run in runs:
        hands.running(run.job)
        hands.set_conditions(run.job, "Created", "Running")
    hands.until(lambda: watches() >= launchers, within=60)
    before = watches()
    hands.server.go_away(0.5)
    hands.until(lambda: watches() >= before + launchers, within=60)
    for number, run in enumerate(runs):
        if number % 10:
            hands.success(run.job)
        else:
            hands.set_conditions(run.job, "Created", "Running=False", "Failed")
    for number, run in enumerate(runs):
        if number % 10:
            run.succeeded()
        else:
            run.failed(JobFailed)
    names = {run.job for run in runs}
    assert len(names) == launchers
    assert {job["metadata"]["name"] for job in hands.jobs()} < names


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_launchers_that_lose_their_watches_at_once_do_not_come_back_in_step(
    kube: Any, failures: int
) -> None:
    limits = Limits(**CALM)
    for follower in (
        JobFollower(kube, print, limits, PYTORCHJOB, {"metadata": {"name": "a"}}),
        PodsFollower(kube, print, limits, "a=b"),
    ):
        pauses = [follower.pause(failures, silent=False) for _ in range(200)]
        assert max(pauses) > 1.8 * min(pauses)
        assert max(pauses) <= limits.poll


def test_after_a_cut_pods_are_looked_at_over_a_longer_time_than_the_job(kube: Any) -> None:
    limits = Limits(**CALM)
    job = JobFollower(kube, print, limits, PYTORCHJOB, {"metadata": {"name": "a"}})
    pods = PodsFollower(kube, print, limits, "a=b")
    assert max(job.pause(0, silent=False) for _ in range(200)) <= 0.4
    assert 1.0 < max(pods.pause(0, silent=False) for _ in range(200)) <= 2.0


@pytest.mark.slow
def test_of_a_job_with_hundreds_of_workers_the_first_to_fail_are_told_and_the_rest_counted(
    step: Any, hands: Any
) -> None:
    run = step(limits=CALM, num_nodes=WORKERS + 1)
    hands.running(run.job)
    runs = {"phase": "Running", "containerStatuses": [container(running={})]}
    hands.pods(run.job, "worker", dict.fromkeys(range(WORKERS), runs))
    hands.set_conditions(run.job, "Created", "Running")
    error = {"rank": 301, "time": 5.0, "type": "ValueError", "message": "bad batch"}
    told = json.dumps({"version": 1, "status": "failed", "error": error | {"traceback": "line 7"}})
    hands.ended(run.job, 1, told, "worker", 300)
    failed = {"phase": "Failed", "containerStatuses": [container(terminated=end(143))]}
    hands.pods(run.job, "worker", {n: failed for n in range(WORKERS) if n != 300})
    hands.set_conditions(run.job, "Created", "Running=False", "Failed: worker 300 failed")
    words = run.failed(JobFailed)
    assert "ValueError: bad batch" in words.splitlines()[0]
    assert "line 7" in words
    assert "more" in words
    assert len(words) < 4_000
    assert hands.count("get", "/log") < 20
    report = Path(run.outputs.report.path).read_text()
    assert len(report) < 30_000
