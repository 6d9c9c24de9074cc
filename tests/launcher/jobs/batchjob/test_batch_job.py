"""A kind of job that the launcher was not written for runs through all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.objects import played

from kfp_pytorch.launcher.errors import JobFailed, NotOurs

RESULT = json.dumps({"version": 1, "status": "succeeded", "metrics": {"accuracy": 0.5}})


def test_a_job_is_created_followed_and_reported(step: Any, controller: Any, capsys: Any) -> None:
    run, seen = step(num_nodes=2), ""
    controller.running(run.job, nodes=2)
    pod = controller.pod(run.job, 0, "Running", running={"startedAt": played.STARTED})
    controller.hands.log(pod, ["2025-11-27T12:00:00.1Z step=1 loss=0.5"], container="main")

    def log_is_streamed() -> bool:
        nonlocal seen
        seen += capsys.readouterr().out
        return "| step=1 loss=0.5\n" in seen

    controller.hands.until(log_is_streamed)
    controller.success(run.job, RESULT)
    places = run.succeeded()
    assert places.folder == f"s3://bucket/{run.job}"
    assert run.outputs.metrics.metadata == {"accuracy": 0.5}
    report = Path(run.outputs.report.path).read_text()
    assert report.startswith(f"# Job {run.job}")
    assert "| succeeded | CompletionsReached |" in report
    assert f"{run.job}-1-x7k2p" in report
    assert f"created Job default/{run.job}" in seen


def test_a_second_try_adopts_the_job(step: Any, controller: Any, told: Any) -> None:
    first = step()
    controller.running(first.job)
    second = step()
    adopted = f"adopted Job default/{first.job}, which an earlier attempt of this step had made"
    controller.hands.until(lambda: any(line.startswith(adopted) for line in told))
    controller.success(first.job, RESULT)
    assert first.succeeded() == second.succeeded()


def test_a_failure_names_the_pod_that_failed_and_the_job_is_deleted(
    step: Any, controller: Any
) -> None:
    run = step(num_nodes=2)
    controller.running(run.job, nodes=2)
    killed = played.end(137, reason="OOMKilled")
    controller.pod(run.job, 1, "Failed", terminated=killed)
    words = ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    controller.status(run.job, words)
    message = run.failed(JobFailed)
    assert message.startswith(f"{run.job}-1-x7k2p ran out of memory: OOMKilled")
    assert "BackoffLimitExceeded" in message
    controller.hands.until(lambda: controller.hands.find(run.kind.resource, run.job) is None)


def test_a_failed_job_is_replaced_by_the_next_try(step: Any, controller: Any, told: Any) -> None:
    first = step(cleanup="never")
    controller.status(first.job, ("Failed", "DeadlineExceeded", "it took too long"))
    first.failed(JobFailed)
    second = step(cleanup="never")
    controller.hands.until(
        lambda: any(
            line.startswith(f"created Job default/{first.job} (attempt 2)") for line in told
        )
    )
    controller.success(second.job, RESULT)
    second.succeeded()


def test_a_job_that_nobody_acknowledges_is_given_up(step: Any, controller: Any) -> None:
    words = step(limits={"acknowledge": 0.2}).failed(JobFailed)
    assert "was not acknowledged by the Job controller within" in words.splitlines()[0]
    assert "kubectl get pods -n kube-system" in " ".join(words.split())


def test_a_refusal_of_pods_that_lasts_is_given_up(step: Any, controller: Any) -> None:
    run = step()
    controller.status(run.job)
    controller.event(run.job, "FailedCreate", "error looking up service account default/none")
    assert "error looking up service account" in run.failed(JobFailed)


def test_a_kind_whose_pods_are_elsewhere_is_told_of_without_a_number_of_pods(
    step: Any, controller: Any, told: Any
) -> None:
    run = step(limits={"start": 1.0}, changed={"expected_pods": lambda _job: 0})
    controller.status(run.job)
    controller.hands.until(lambda: "starting" in told)
    words = run.failed(JobFailed).splitlines()[0]
    assert words == f"Job {run.job} did not start within 1 s (start_timeout)."
    assert not any("of 0 pods" in line for line in told)


def test_a_signal_deletes_the_job(step: Any, controller: Any) -> None:
    run = step()
    controller.running(run.job)
    run.stopper.stop()
    assert run.left == [143]
    controller.hands.until(lambda: controller.hands.find(run.kind.resource, run.job) is None)


def test_a_job_of_somebody_else_is_refused(step: Any, controller: Any) -> None:
    probe = step()
    controller.job(probe.job)
    controller.hands.delete(probe.kind.resource, probe.job)
    probe.failed(JobFailed)
    other = {"metadata": {"name": probe.job, "namespace": "default"}, "spec": {"completions": 1}}
    controller.server.call(controller.server.api.create, probe.kind.resource, other)
    assert "There is a Job" in step().failed(NotOurs)
