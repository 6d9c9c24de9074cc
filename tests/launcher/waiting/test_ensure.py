"""Exactly one live job, whatever was there before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from harness.faults.actions import Answer, Forbidden, LostAnswer

from kfp_pytorch.launcher.constants import (
    ATTEMPT_ANNOTATION,
    CLAIM,
    PYTORCHJOB,
    REPLACE_OTHER_ENV,
    STEP_ID_LABEL,
)
from kfp_pytorch.launcher.errors import (
    CannotObserve,
    InputError,
    JobFailed,
    NotOurs,
    PermissionMissing,
)
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes.api_errors import Refused

OVER_QUOTA = Answer(
    403,
    "Forbidden",
    'pytorchjobs "x" is forbidden: exceeded quota: jobs, used: 1, limited: 1',
)


def attempt(job: Any) -> str:
    return job["metadata"]["annotations"][ATTEMPT_ANNOTATION]


def test_a_retry_adopts_the_job_that_runs(step: Any, hands: Any) -> None:
    first = step()
    uid = hands.job(first.job)["metadata"]["uid"]
    hands.set_conditions(first.job, "Created", "Running")
    second = step()
    hands.until(lambda: hands.count("create", "pytorchjobs") >= 2)
    hands.success(first.job)
    assert second.succeeded() == first.succeeded()
    assert [job["metadata"]["uid"] for job in hands.jobs()] == [uid]


def test_a_retry_takes_the_result_of_a_job_that_succeeded_meanwhile(step: Any, hands: Any) -> None:
    first = step()
    hands.running(first.job)
    hands.success(first.job, metrics={"loss": 0.5})
    first.succeeded()
    second = step()
    second.succeeded()
    assert second.outputs.metrics.metadata == {"loss": 0.5}
    assert len(hands.jobs()) == 1


def test_a_job_that_succeeded_with_other_inputs_is_replaced_where_the_step_is_told_to(
    step: Any, hands: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv(REPLACE_OTHER_ENV, "1")
    first = step(args=["--epochs", "8"])
    hands.running(first.job)
    hands.success(first.job)
    first.succeeded()
    step(args=["--epochs", "8"]).succeeded()
    old = hands.job(first.job)
    third = step(args=["--epochs", "12"])
    hands.until(lambda: [attempt(job) for job in hands.jobs()] == ["2"])
    assert hands.job(first.job)["metadata"]["uid"] != old["metadata"]["uid"]
    hands.success(first.job, metrics={"loss": 0.2})
    third.succeeded()
    assert third.outputs.metrics.metadata == {"loss": 0.2}


def test_a_retry_replaces_a_job_that_failed_and_counts_the_attempt(step: Any, hands: Any) -> None:
    first = step(cleanup="never")
    old = hands.set_conditions(first.job, "Created", "Failed")
    first.failed(JobFailed)
    second = step()
    new = hands.until(
        lambda: next(
            (j for j in hands.jobs() if j["metadata"]["uid"] != old["metadata"]["uid"]), None
        )
    )
    assert (attempt(old), attempt(new)) == ("1", "2")
    hands.success(first.job)
    second.succeeded()


def test_a_job_that_fails_again_is_replaced_again(step: Any, hands: Any) -> None:
    for number in ("1", "2", "3"):
        run = step(cleanup="never")
        hands.until(lambda n=number: [attempt(j) for j in hands.jobs()] == [n])
        hands.set_conditions(run.job, "Failed")
        run.failed(JobFailed)


def test_a_job_of_somebody_else_is_refused_and_never_touched(
    step: Any, hands: Any, server: Any
) -> None:
    probe = step(cleanup="never")
    job = hands.job(probe.job)
    hands.set_conditions(probe.job, "Failed")
    probe.failed(JobFailed)
    hands.change_job(probe.job, lambda obj: obj["metadata"]["labels"].pop(STEP_ID_LABEL))
    before = hands.find(PYTORCHJOB, probe.job)
    words = step().failed(NotOurs)
    assert probe.job in words
    assert "not touched" in words
    assert hands.find(PYTORCHJOB, probe.job) == before
    assert before["metadata"]["uid"] == job["metadata"]["uid"]
    assert hands.count("delete", "pytorchjobs") == 0


def test_a_job_that_is_being_deleted_is_waited_for(step: Any, hands: Any) -> None:
    first = step()
    old = hands.job(first.job)
    hands.change_job(first.job, lambda obj: obj["metadata"].update(finalizers=["test/hold"]))
    hands.delete(PYTORCHJOB, first.job)
    gets = hands.count("get", "pytorchjobs")
    second = step(limits={"deletion": 60})
    hands.until(lambda: hands.count("get", "pytorchjobs") >= gets + 4)
    assert [job["metadata"]["uid"] for job in hands.jobs()] == [old["metadata"]["uid"]]
    hands.change_job(first.job, lambda obj: obj["metadata"].pop("finalizers"))
    assert "deleted" in first.failed(JobFailed)
    new = hands.until(lambda: hands.find(PYTORCHJOB, first.job))
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    assert attempt(new) == "2"
    hands.success(first.job)
    second.succeeded()


def test_a_deletion_that_never_ends_fails_with_the_finalizers(step: Any, hands: Any) -> None:
    first = step()
    hands.job(first.job)
    hands.change_job(first.job, lambda obj: obj["metadata"].update(finalizers=["test/hold"]))
    hands.delete(PYTORCHJOB, first.job)
    assert "test/hold" in step(limits={"deletion": 0.3}).failed(JobFailed)
    hands.change_job(first.job, lambda obj: obj["metadata"].pop("finalizers"))
    first.failed(JobFailed)


@pytest.mark.parametrize("then", ["stall", "reset", "timeout"])
def test_a_create_whose_answer_was_lost_is_adopted(
    step: Any, hands: Any, hasty: Any, then: str
) -> None:
    hands.fault(LostAnswer(then), "create")
    run = step(on=hasty)
    hands.until(lambda: hands.count("create", "pytorchjobs") >= 2)
    hands.success(run.job)
    run.succeeded()
    assert len(hands.jobs()) == 1


def test_a_job_that_vanishes_between_create_and_look_is_created(step: Any, hands: Any) -> None:
    hands.fault(Answer(409, "AlreadyExists", "already exists"), "create", times=2)
    run = step()
    hands.job(run.job)
    hands.success(run.job)
    run.succeeded()


def test_a_create_that_collides_at_a_quota_is_made_again(step: Any, hands: Any) -> None:
    words = 'Operation cannot be fulfilled on resourcequotas "jobs": the object has been modified'
    hands.fault(Answer(409, "Conflict", words), "create", times=2)
    run = step()
    hands.success(run.job)
    run.succeeded()
    assert hands.count("create", "pytorchjobs") == 3


@pytest.mark.parametrize(
    "words",
    [
        "not yet ready to handle request",
        "status unknown for quota: jobs, resources: count/pytorchjobs.kubeflow.org",
    ],
)
def test_a_server_that_has_not_read_yet_what_it_judges_by_is_asked_again(
    step: Any, hands: Any, words: str
) -> None:
    said = f'pytorchjobs.kubeflow.org "x" is forbidden: {words}'
    hands.fault(Answer(403, "Forbidden", said), "create", times=2)
    run = step()
    hands.success(run.job)
    run.succeeded()


def test_a_quota_that_counts_a_job_whose_answer_was_lost_is_not_taken_for_a_refusal(
    step: Any, hands: Any
) -> None:
    hands.fault(LostAnswer("timeout"), "create")
    hands.fault(OVER_QUOTA, "create")
    run = step()
    hands.until(lambda: hands.count("watch", "/pytorchjobs"))
    hands.success(run.job)
    run.succeeded()


@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_a_retry_finds_its_job_though_a_quota_lets_no_other_be_made(
    step: Any, hands: Any, phase: str
) -> None:
    first = step(cleanup="never")
    uid = hands.set_conditions(first.job, "Created", phase)["metadata"]["uid"]
    if phase == "Failed":
        first.failed(JobFailed)
    hands.fault(OVER_QUOTA, "create")
    second = step()
    creates = 2 if phase == "Running" else 3
    hands.until(lambda: hands.count("create", "pytorchjobs") >= creates)
    job = hands.until(lambda: hands.find(PYTORCHJOB, first.job))
    assert (job["metadata"]["uid"] == uid) == (phase == "Running")
    hands.success(first.job)
    second.succeeded()


def test_a_quota_that_still_counts_the_job_that_is_replaced_is_waited_for(
    step: Any, hands: Any
) -> None:
    first = step(cleanup="never")
    hands.set_conditions(first.job, "Created", "Failed")
    first.failed(JobFailed)
    hands.fault(OVER_QUOTA, "create", skip=1)
    second = step()
    hands.until(lambda: hands.count("create", "pytorchjobs") >= 4)
    hands.success(first.job)
    second.succeeded()


def test_a_quota_that_has_no_room_for_another_job_is_not_waited_for_for_ever(
    step: Any, hands: Any
) -> None:
    first = step(cleanup="never")
    hands.set_conditions(first.job, "Created", "Failed")
    first.failed(JobFailed)
    hands.fault(OVER_QUOTA, "create", times=None)
    assert OVER_QUOTA.message in step(limits={"quota": 0.1}).failed(Refused)


def test_credentials_refused_after_a_create_whose_answer_was_lost_say_that_a_job_may_be_there(
    step: Any, hands: Any, impatient: Any
) -> None:
    hands.fault(LostAnswer("timeout"), "create")
    hands.fault(Answer(401), "create", times=None)
    words = step(on=impatient).failed(CannotObserve)
    assert "does not accept the credentials" in words
    assert "Whether PyTorchJob default/pytorch-job-" in words


def test_an_admission_refusal_is_told_in_the_webhooks_words(step: Any, hands: Any) -> None:
    words = 'admission webhook "validator.training" denied the request: image is forbidden'
    hands.fault(Answer(403, "Forbidden", words), "create")
    run = step()
    assert "image is forbidden" in run.failed(Refused)
    assert hands.count("create", "pytorchjobs") == 1


def test_a_missing_permission_names_all_that_is_needed_to_grant_it(step: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "create", times=None)
    words = step().failed(PermissionMissing)
    for part in (
        "system:serviceaccount:kubeflow:pipeline-runner",
        "create pytorchjobs",
        "kubeflow.org",
        "'default'",
        "manifests/rbac.yaml",
    ):
        assert part in words


def test_a_cluster_without_the_operator_is_named_as_such(step: Any, hands: Any) -> None:
    hands.fault(Answer(404), "create", times=None)
    assert "Install the Kubeflow Training Operator" in step().failed(JobFailed)


def test_a_kind_of_another_version_is_named_with_it(step: Any) -> None:
    newer = replace(PYTORCH_JOB, resource=replace(PYTORCHJOB, version="v2"))
    words = step(kind=newer).failed(JobFailed)
    assert "no PyTorchJob of kubeflow.org/v2: its CustomResourceDefinition is of v1" in words
    assert "Install the Kubeflow Training Operator v1" in words


def test_a_kind_that_the_server_learns_a_moment_later_is_waited_for(step: Any, hands: Any) -> None:
    hands.fault(Answer(404), "create", times=2)
    run = step(limits={"kind_absent": 60.0})
    hands.success(run.job)
    run.succeeded()


def test_a_claim_that_is_not_there_fails_before_anything_is_made(step: Any, hands: Any) -> None:
    words = step(output_uri="pvc://no-such-claim/a").failed(InputError)
    assert "no-such-claim" in words
    assert hands.jobs() == []


def test_a_claim_that_may_not_be_read_stops_nothing(step: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "get", f"*/{CLAIM.plural}/*")
    run = step()
    hands.success(run.job)
    run.succeeded()


def test_the_job_has_no_owner_outside_of_a_workflow(step: Any, hands: Any) -> None:
    run = step()
    assert "ownerReferences" not in hands.job(run.job)["metadata"]
    hands.success(run.job)
    run.succeeded()


def test_other_refusals_of_the_server_are_not_taken_for_typing_errors(
    step: Any, hands: Any
) -> None:
    words = "PyTorchJob in version v1 cannot be handled as a PyTorchJob: json: cannot unmarshal"
    hands.fault(Answer(400, "BadRequest", words), "create")
    assert "cannot unmarshal" in step().failed(Refused)
