"""A TrainJob goes through each of its states, as a Trainer writes them, and the step follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Answer
from harness.faults.plan import Fault
from harness.objects import played

from kfp_pytorch.launcher.constants import CLUSTER_TRAINING_RUNTIME, CONFIG_MAP, POD, TRAINJOB
from kfp_pytorch.launcher.errors import InputError, JobFailed

RESULT = json.dumps({"version": 1, "status": "succeeded", "metrics": {"accuracy": 0.5}})
TOO_LONG = (
    'TrainJob resources reconciliation failed: admission webhook "vjobset.kb.io" denied the '
    'request: JobSet.jobset.x-k8s.io "j" is invalid: spec.replicatedJobs[0].name: Invalid value: '
    '"j-node-0": JobSet name is too long'
)
HARMLESS = (
    'TrainJob resources reconciliation failed: JobSet.jobset.x-k8s.io "j" is invalid: '
    '[spec.replicatedJobs[0].template.spec.template.metadata: Invalid value: "null"]'
)
WEBHOOK = (
    'Internal error occurred: failed calling webhook "defaulter.trainjob.trainer.kubeflow.org": '
    "connection refused"
)
SUSPENDED = ("Suspended", "Suspended", "TrainJob is suspended")
RESUMED = ("Suspended=False", "Resumed", "TrainJob is resumed")


def test_a_job_is_made_followed_and_reported(step: Any, trains: Any, told: Any) -> None:
    run = step(num_nodes=2)
    trains.status(run.job, active=1)
    trains.running(run.job, nodes=2)
    trains.hands.until(lambda: any(line.startswith("running") for line in told))
    # One node ends first, and for a moment the job is not ready.
    trains.pod(run.job, 1, "Succeeded", terminated=played.end(0))
    trains.status(run.job, active=1, ready=0)
    trains.status(run.job, active=1, ready=1)
    trains.succeed(run.job, RESULT)
    assert run.succeeded().folder == f"s3://bucket/{run.job}"
    assert run.outputs.metrics.metadata == {"accuracy": 0.5}
    timeline = [
        line
        for line in Path(run.outputs.report.path).read_text().split("\n")
        if "| running |" in line
    ]
    assert len(timeline) == 1


def test_a_failure_is_explained_by_a_pod_that_is_gone_when_the_job_says_so(
    step: Any, trains: Any, told: Any
) -> None:
    run = step(num_nodes=2, retry_same_error=True)
    trains.running(run.job, nodes=2)
    killed = {"lastState": {"terminated": played.end(137, reason="OOMKilled")}, "restarts": 6}
    pod = trains.pod(run.job, 1, waiting={"reason": "CrashLoopBackOff"}, **killed)
    trains.hands.until(lambda: any("OOMKilled" in line for line in told))
    trains.hands.delete(POD, pod["metadata"]["name"])
    trains.fail(run.job)
    message = run.failed(JobFailed)
    assert message.startswith(f"{run.job}-node-0-1-aaaaa ran out of memory: OOMKilled")
    assert "FailedJobs: jobset failed" in message
    trains.hands.until(lambda: trains.find(run.job) is None)


def test_the_first_failure_is_the_end_though_the_trainer_starts_the_job_again(
    step: Any, trains: Any
) -> None:
    run = step(cleanup="never")
    trains.running(run.job)
    with trains.hands.unanswered("get", "*/pods*"):
        trains.fail(run.job)
        trains.status(run.job, active=1)
    assert "FailedJobs" in run.failed(JobFailed)


def test_a_restart_of_the_jobset_goes_on_with_new_pods(step: Any, trains: Any, told: Any) -> None:
    run = step()
    trains.running(run.job)
    pod = trains.pod(run.job, 0, "Failed", terminated=played.end(3))
    trains.status(run.job, failed=1)
    trains.hands.until(lambda: any("exit code 3" in line for line in told))
    trains.hands.delete(POD, pod["metadata"]["name"])
    trains.status(run.job, active=1)
    trains.pod(run.job, end="bbbbb")
    trains.status(run.job, active=1, ready=1)
    trains.succeed(run.job, RESULT, end="bbbbb")
    run.succeeded()
    report = Path(run.outputs.report.path).read_text()
    assert f"{run.job}-node-0-0-aaaaa: Error exit code 3" in report


def test_a_suspended_job_waits_and_a_resumed_one_is_not_suspended(
    step: Any, trains: Any, told: Any
) -> None:
    run = step(suspend=True)
    trains.status(run.job, SUSPENDED, suspended=1)
    trains.hands.until(lambda: any(line.startswith("queued") for line in told))
    # This comes with every preemption, and says nothing.
    trains.event(run.job, "TrainJobResourcesCreationFailed", HARMLESS)
    trains.event(run.job, "Pending", "insufficient unused quota")
    trains.hands.until(lambda: any("insufficient unused quota" in line for line in told))
    trains.suspend(run.job, False)
    trains.status(run.job, RESUMED, suspended=1)
    trains.status(run.job, RESUMED, active=1)
    trains.hands.until(lambda: any(line.startswith("starting") for line in told))
    trains.pod(run.job)
    trains.status(run.job, RESUMED, active=1, ready=1)
    trains.succeed(run.job, RESULT)
    run.succeeded()
    assert not any("TrainJobResourcesCreationFailed" in line for line in told)
    assert "| queued |" in Path(run.outputs.report.path).read_text()


def test_a_job_that_somebody_deletes_ends_the_step(step: Any, trains: Any) -> None:
    run = step()
    trains.running(run.job)
    trains.hands.delete(TRAINJOB, run.job)
    message = run.failed(JobFailed)
    assert message.startswith(f"TrainJob {run.job} was deleted while it was waited for")


def test_a_job_that_the_trainer_cannot_make_a_jobset_of_is_given_up(step: Any, trains: Any) -> None:
    run = step()
    trains.event(run.job, "TrainJobResourcesCreationFailed", TOO_LONG)
    message = run.failed(JobFailed)
    assert "TrainJobResourcesCreationFailed" in message
    assert "JobSet name is too long" in message


def test_a_job_that_nobody_acknowledges_is_given_up(step: Any) -> None:
    message = step(limits={"acknowledge": 0.3}).failed(JobFailed)
    assert "was not acknowledged by the Trainer within" in message
    assert "app.kubernetes.io/name=trainer" in message


def test_pods_that_are_refused_are_said_by_the_event_of_the_job_below(
    step: Any, trains: Any
) -> None:
    run = step()
    trains.status(run.job, active=0)
    words = 'Error creating: pods "x" is forbidden: error looking up service account default/no'
    trains.event(f"{run.job}-node-0", "FailedCreate", words, kind="Job")
    assert "error looking up service account default/no" in run.failed(JobFailed)


def test_a_second_try_adopts_the_job_without_its_runtime(step: Any, trains: Any) -> None:
    first = step()
    trains.running(first.job)
    api = trains.server.api
    trains.server.call(api.delete, CLUSTER_TRAINING_RUNTIME, "", "torch-distributed")
    second = step()
    trains.succeed(first.job, RESULT)
    assert first.succeeded() == second.succeeded()


def test_a_job_is_made_again_only_when_the_pods_of_the_old_one_are_gone(
    step: Any, trains: Any
) -> None:
    first = step(cleanup="never")
    trains.running(first.job)
    trains.fail(first.job)
    first.failed(JobFailed)
    old = trains.job(first.job)["metadata"]["uid"]
    second = step()
    trains.hands.until(lambda: trains.find(first.job) is None)
    trains.hands.delete(POD, f"{first.job}-node-0-0-aaaaa")
    trains.hands.until(lambda: trains.find(first.job))
    assert trains.job(first.job)["metadata"]["uid"] != old
    assert trains.job(first.job)["metadata"]["annotations"]["kfp-pytorch/attempt"] == "2"
    trains.pod(second.job, end="bbbbb")
    trains.status(second.job, active=1, ready=1)
    trains.succeed(second.job, RESULT, end="bbbbb")
    second.succeeded()


def test_a_signal_deletes_the_job_in_the_background(step: Any, trains: Any) -> None:
    run = step()
    trains.running(run.job)
    run.stopper.stop()
    # In the foreground it would stay while it has a pod that blocks its deletion.
    assert trains.find(run.job) is None
    assert run.left == [143]


def test_a_webhook_that_is_down_for_a_moment_is_asked_again(step: Any, trains: Any) -> None:
    trains.server.faults.add(Fault(Answer(500, "InternalError", WEBHOOK), "create", "*/trainjobs"))
    run = step()
    trains.running(run.job)
    trains.succeed(run.job, RESULT)
    run.succeeded()


def test_a_cluster_without_trainjobs_is_said_to_need_the_trainer(
    start_step: Any, trains: Any
) -> None:
    trains.server.faults.add(Fault(Answer(404), "", "*trainer.kubeflow.org*", times=None))
    run = start_step(trains, source={"files": {"train.py": "pass"}})
    message = run.failed(JobFailed)
    assert "The cluster has no trainjobs.trainer.kubeflow.org" in message
    assert "Install Kubeflow Trainer v2" in message
    # Nothing is left: neither the job nor the ConfigMap of its files.
    assert trains.server.call(trains.server.api.list, CONFIG_MAP, "default") == []


@pytest.mark.parametrize("field", ["podTemplateOverrides", "podSpecOverrides"])
def test_an_older_trainer_gets_its_own_form(
    field: str, start_trainer: Any, start_step: Any
) -> None:
    trains = start_trainer(field)
    run = start_step(trains, node_selector={"disk": "ssd"})
    made = trains.job(run.job)["spec"]
    assert "runtimePatches" not in made
    patch = made[field][0]
    assert (patch.get("spec") or patch)["nodeSelector"] == {"disk": "ssd"}
    trains.running(run.job)
    trains.succeed(run.job, RESULT)
    run.succeeded()


def test_what_an_older_trainer_cannot_do_is_refused_before_anything_is_made(
    start_trainer: Any, start_step: Any
) -> None:
    trains = start_trainer("podSpecOverrides")
    run = start_step(trains, affinity={"podAffinity": {}})
    assert "cannot be given affinity: with podSpecOverrides" in run.failed(InputError)
    assert trains.find(run.job) is None


def test_a_schema_that_cannot_be_read_is_said_and_the_newest_form_taken(
    step: Any, trains: Any, told: Any
) -> None:
    trains.server.faults.add(Fault(Answer(404), "", "/openapi/*", times=None))
    run = step()
    trains.running(run.job)
    trains.succeed(run.job, RESULT)
    run.succeeded()
    assert any("taking runtimePatches, as since Trainer 2.2" in line for line in told)


def test_a_runtime_that_is_not_there_is_refused_before_anything_is_made(
    step: Any, trains: Any
) -> None:
    run = step(runtime="no-such")
    message = run.failed(InputError)
    assert "there is no ClusterTrainingRuntime of that name" in message
    run = step(runtime="no-such", runtime_kind="TrainingRuntime")
    assert "no TrainingRuntime of that name in namespace 'default'" in run.failed(InputError)
    assert trains.find(run.job) is None


def test_a_runtime_that_may_not_be_read_is_left_to_the_trainer(
    step: Any, trains: Any, told: Any
) -> None:
    words = 'User "x" cannot get resource "clustertrainingruntimes"'
    denied = Answer(403, "Forbidden", words)
    trains.server.faults.add(Fault(denied, "get", "*/clustertrainingruntimes/*", times=None))
    run = step()
    trains.running(run.job)
    trains.succeed(run.job, RESULT)
    run.succeeded()
    assert any("'torch-distributed' could not be checked" in line for line in told)
