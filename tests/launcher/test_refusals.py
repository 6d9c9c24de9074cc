"""Pods that the cluster does not let the operator create."""

from __future__ import annotations

import time
from typing import Any

from kfp_pytorch.launcher.errors import JobFailed


def test_pods_that_the_cluster_refuses_for_good_fail_soon_and_the_operator_is_not_blamed(
    step: Any, hands: Any
) -> None:
    run = step(limits={"acknowledge": 0.6}, start_timeout=3600)
    hands.job(run.job)
    words = 'error looking up service account team/me: serviceaccount "me" not found'
    hands.event(run.job, "FailedCreatePod", f'Error creating: pods "x" is forbidden: {words}')
    said = run.failed(JobFailed)
    assert words in said.splitlines()[0]
    assert "Create the account, or correct service_account" in said
    assert "not acknowledged" not in said


def test_pods_that_a_quota_keeps_away_are_waited_for_like_any_that_do_not_start(
    step: Any, hands: Any, told: list[str]
) -> None:
    run = step(limits={"acknowledge": 0.3})
    hands.job(run.job)
    words = "Error creating: pods x is forbidden: exceeded quota: q, requested: pods=1"
    hands.event(run.job, "FailedCreatePod", words)
    hands.until(lambda: [line for line in told if "exceeded quota" in line])
    time.sleep(0.6)
    assert run.going, run.error
    hands.set_conditions(run.job, "Created")
    hands.success(run.job)
    run.succeeded()
