"""The step against a real API server, with the test as operator and kubelet."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.errors import JobFailed


def test_a_job_that_succeeds_hands_its_metrics_on(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created")
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.success(run.job, metrics={"accuracy": 0.99})
    assert run.succeeded().storage_uri.startswith("pvc://kfp-pytorch/")
    assert run.outputs.metrics.metadata == {"accuracy": 0.99}
    assert len(hands.jobs()) == 1


def test_a_job_that_fails_is_explained_and_deleted(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Failed: it broke")
    assert "it broke" in run.failed(JobFailed)
    hands.until(lambda: hands.jobs() == [])
