"""The step against a real API server, with the test as operator and kubelet."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.errors import JobFailed


def test_a_job_that_succeeds_hands_its_metrics_on(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created")
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.success(run.job, metrics={"accuracy": 0.99}, export={"path": "export"})
    folder = f"pvc://kfp-pytorch/{run.job}"
    assert run.succeeded() == (f"{folder}/export", folder)
    assert run.outputs.metrics.metadata == {"accuracy": 0.99}
    assert len(hands.jobs()) == 1


def test_an_export_that_cannot_be_where_training_says_fails_the_step(step: Any, hands: Any) -> None:
    run = step()
    hands.running(run.job)
    hands.success(run.job, metrics={"accuracy": 0.99}, export={"path": "../out"}, checkpoint=40)
    message = run.failed(JobFailed)
    assert message.startswith("Training reported its export at '../out', which is no folder below")
    assert (
        "What to do: Training itself succeeded. Write the export below KFP_PYTORCH_OUTPUT"
        in message
    )
    assert "(its newest checkpoint is of step 40)" in message
    hands.until(lambda: hands.jobs() == [])


def test_a_job_that_fails_is_explained_and_deleted(step: Any, hands: Any) -> None:
    run = step()
    hands.set_conditions(run.job, "Created", "Failed: it broke")
    assert "it broke" in run.failed(JobFailed)
    hands.until(lambda: hands.jobs() == [])
