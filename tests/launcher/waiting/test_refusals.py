"""Jobs that the cluster refuses, and pods that it does not let the operator create."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.faults.actions import Answer, Forbidden
from harness.objects.evident import event, first_line, job, of, pod

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.launcher.errors import JobFailed, StepError
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes.api_errors import Refused
from kfp_pytorch.launcher.waiting import refused_pods
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.grace import Grace
from kfp_pytorch.local.apiserver.errors import STALE


def test_pods_that_the_cluster_refuses_for_good_fail_soon_and_the_operator_is_not_blamed(
    step: Any, hands: Any
) -> None:
    run = step(start_timeout=3600)
    hands.job(run.job)
    words = 'error looking up service account team/me: serviceaccount "me" not found'
    hands.event(run.job, "FailedCreatePod", f'Error creating: pods "x" is forbidden: {words}')
    said = run.failed(JobFailed)
    assert words in said.splitlines()[0]
    assert "Create the account, or correct service_account" in said
    assert "not acknowledged" not in said


@pytest.mark.parametrize("code", [401, 403, 404, 409, 422])
@pytest.mark.parametrize(
    "denial",
    [
        'admission webhook "w.example" denied the request: nobody may use resource gpus',
        "pytorchjobs \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied "
        "request: nobody may use resource gpus",
    ],
)
def test_a_denial_is_told_as_one_whatever_code_it_has(
    step: Any, hands: Any, code: int, denial: str
) -> None:
    hands.fault(Answer(code, message=denial), "create", times=None)
    said = step().failed(Refused)
    assert denial in said
    assert hands.count("create", "pytorchjobs") == 1


def test_a_denial_for_a_stale_object_is_met_with_another_try(step: Any, hands: Any) -> None:
    stale = f'admission webhook "w.example" denied the request: cannot be fulfilled: {STALE}'
    hands.fault(Answer(409, message=stale), "create", times=2)
    run = step()
    hands.success(run.job)
    run.succeeded()


@pytest.mark.parametrize("code", [404, 409])
def test_a_deletion_that_is_denied_is_left_for_a_person_to_do(
    step: Any, hands: Any, told: list[str], code: int
) -> None:
    words = 'admission webhook "w.example" denied the request: keep it'
    run = step()
    hands.job(run.job)
    details = {"name": run.job, "kind": "pytorchjobs"}
    said = {"kind": "Status", "reason": "NotFound", "message": words, "details": details}
    hands.fault(Answer(code, body=json.dumps(said)), "delete", times=None)
    hands.set_conditions(run.job, "Failed: it broke")
    assert "it broke" in run.failed(JobFailed)
    assert any("do it by hand" in line and "keep it" in line for line in told)
    assert hands.count("delete", "pytorchjobs") == 1


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        ([{"field": "spec.a", "message": "Required value"}, None, 5], "spec.a: Required value"),
        ("no list", "Invalid"),
    ],
)
def test_a_refusal_without_a_message_is_told_by_its_causes_or_its_reason(
    step: Any, hands: Any, causes: Any, words: str
) -> None:
    said = {"kind": "Status", "reason": "Invalid", "details": {"causes": causes}}
    hands.fault(Answer(422, body=json.dumps(said)), "create")
    assert f"in namespace 'default': {words}." in step().failed(Refused)


def test_a_refusal_that_quotes_a_whole_object_stays_readable(step: Any, hands: Any) -> None:
    hands.fault(Answer(422, message=f"spec.x: Invalid value: {'x' * 300_000}: too long"), "create")
    run = step()
    said = run.failed(Refused)
    assert "spec.x: Invalid value: xxx" in said
    assert "xxx: too long.\nChange what the cluster objects to" in said
    assert len(said) < 1500


def test_an_account_that_is_made_a_moment_later_is_waited_for(
    step: Any, hands: Any, says: Any, later: Any
) -> None:
    run = step(limits={"refusal_grace": 60.0})
    hands.job(run.job)
    hands.event(run.job, "FailedCreatePod", 'error looking up service account team/me: "me"')
    hands.until(lambda: hands.count("list", "/events") > 1)
    hands.running(run.job)
    hands.set_conditions(run.job, "Created", "Running")
    hands.set_conditions(run.job, "Created", "Suspended")
    hands.delete(POD, f"{run.job}-master-0")
    says("queued")
    later(run, 70.0)  # The words are of before there were pods.
    hands.success(run.job)
    run.succeeded()


def test_what_was_told_of_an_earlier_job_of_the_same_name_is_not_this_one_s(
    step: Any, hands: Any
) -> None:
    words = "error looking up service account team/me"
    first = step(limits={"start": 0.0}, start_timeout=0)
    hands.event(first.job, "FailedCreatePod", words, uid=hands.job(first.job)["metadata"]["uid"])
    assert words in first.failed(JobFailed)
    hands.until(lambda: hands.jobs() == [])
    long_ago = "2001-01-01T00:00:00Z"
    hands.event(first.job, "Unschedulable", "not enough room", "PodGroup", "x", long_ago)
    with hands.unanswered():
        again = step(limits={"start": 1.0})
        hands.set_conditions(again.job, "Created")
    said = again.failed(JobFailed)
    assert "start_timeout" in said.splitlines()[0]
    assert words not in said
    assert "not enough room" not in said


def test_a_job_that_is_queued_is_not_given_up_for_what_was_refused_before() -> None:
    events = [event("j", "FailedCreatePod", "error looking up service account team/me")]
    watch = refused_pods.RefusalWatch()
    waits, queued = job(status={}), job(spec={"runPolicy": {"suspend": True}}, status={})
    assert "service account" in watch.current(Evidence(PYTORCH_JOB, job=waits, events=events))
    assert watch.current(Evidence(PYTORCH_JOB, job=queued, events=events)) == ""
    assert "service account" in watch.current(Evidence(PYTORCH_JOB, job=waits, events=events))


def test_the_grace_of_a_condition_begins_again_when_it_holds_again() -> None:
    grace = Grace(10.0)
    assert grace.exceeded(["a"], 5.0) == ""
    assert grace.next_deadline() == 15.0
    assert grace.exceeded([], 15.0) == ""
    assert grace.next_deadline() is None
    assert grace.exceeded(["a"], 20.0) == ""
    assert grace.exceeded(["b", "a"], 30.0) == "a"
    # What is due already wakes nobody again.
    assert grace.next_deadline() == 40.0
    grace.reset()
    assert grace.exceeded(["a"], 31.0) == ""


def test_events_that_may_not_be_read_are_said_to_be_where_the_reason_may_be(
    step: Any, hands: Any
) -> None:
    hands.fault(Forbidden(), "list", "*/events", times=None)
    said = step(limits={"acknowledge": 0.5}).failed(JobFailed)
    assert "events, which may say why, may not be read by this step" in said.splitlines()[0]
    assert "kubectl get events" in said.splitlines()[1]
    assert "may not list events" in said
    with hands.unanswered():
        run = step(limits={"start": 1.0}, task="another")
        hands.set_conditions(run.job, "Created")
    said = run.failed(JobFailed)
    assert "none of its 1 pods was made: events, which may say why, may not be read" in said


def test_pods_that_a_quota_keeps_away_are_waited_for_like_any_that_do_not_start(
    step: Any, hands: Any, told: list[str], later: Any
) -> None:
    run = step(limits={"acknowledge": 60.0})
    hands.job(run.job)
    words = "Error creating: pods x is forbidden: exceeded quota: q, requested: pods=1"
    hands.event(run.job, "FailedCreatePod", words)
    hands.until(lambda: [line for line in told if "exceeded quota" in line])
    later(run, 70.0)
    hands.set_conditions(run.job, "Created")
    hands.success(run.job)
    run.succeeded()


@pytest.mark.parametrize(
    ("words", "lasts", "advice"),
    [
        ("maximum memory usage per Container is 1Gi, but limit is 8Gi", True, "LimitRange"),
        ("[minimum cpu usage per Pod is 100m, but request is 10m]", True, "LimitRange"),
        ("failed quota: q: must specify limits.cpu for: pytorch", True, "Set cpu and memory"),
        ("cpu max limit to request ratio per Pod is 1, but it is 2", True, "LimitRange"),
        ("insufficient quota to match these scopes: [{PriorityClass In [a]}]", True,
         "such a quota"),
        (
            "unable to validate against any security context constraint: [provider restricted-v2: "
            ".containers[0].runAsUser: Invalid value: 1000: must be in the ranges: [7, 9]]",
            True,
            "set run_as_user to 0",
        ),
        ("unable to create new content in namespace team because it is being terminated", True,
         "use another one"),
        ('violates PodSecurity "restricted": runAsNonRoot != true (container "pytorch" must not '
         "set runAsNonRoot=false)", True, "run_as_root"),
        ('violates PodSecurity "restricted": seccompProfile (containers "istio-init", "pytorch" '
         "must set)", True, "The container istio-init breaks it"),
        ('violates PodSecurity "baseline": (container "init-pytorch" must set)', True,
         "--pytorch-init-container-template-file"),
        ('admission webhook "v.acme" denied the request: no latest tags', False, "that webhook"),
        ('Internal error occurred: failed calling webhook "s.istio.io": no endpoints', False,
         "does not answer"),
        ('pods "j-master-0" already exists', False, "of an earlier job"),
        ("exceeded quota: q, requested: pods=1, used: pods=9, limited: pods=9", False, "Kueue"),
    ],
)  # fmt: skip
def test_each_refusal_of_pods_has_its_own_advice_and_some_last(
    words: str, lasts: bool, advice: str
) -> None:
    events = [event("j", "FailedCreatePod", f"Error creating: {words}")]
    found = of(job=job(status={}), events=events)
    assert words in first_line(found)
    assert advice in found.message.splitlines()[1]
    assert bool(refused_pods.lasting(Evidence(PYTORCH_JOB, job=job(), events=events))) is lasts


@pytest.mark.parametrize(
    ("code", "reason", "message", "details", "advice"),
    [
        (403, "Forbidden", "exceeded quota: jobs, requested: count/pytorchjobs=1", {}, "Kueue"),
        (403, "Forbidden", "it is being terminated", {}, "use another one"),
        (400, "BadRequest", 'webhook "v.acme" denied the request: no', {}, "that webhook"),
        (413, "RequestEntityTooLarge", "Request entity too large: limit is 3", {}, "an artifact"),
        (422, "Invalid", 'PyTorchJob "x" is invalid: spec.a: Required', {}, "pod_template_patch"),
        (404, "NotFound", 'namespaces "team" not found', {"name": "team", "kind": "namespaces"},
         "Create the namespace"),
    ],
)  # fmt: skip
def test_a_job_that_is_refused_ends_the_step_at_once_with_words_and_a_way_out(
    step: Any, hands: Any, code: int, reason: str, message: str, details: Any, advice: str
) -> None:
    said = {"kind": "Status", "reason": reason, "message": message, "details": details}
    hands.fault(Answer(code, body=json.dumps(said)), "create", times=None)
    words = step().failed(StepError)
    assert message in words.splitlines()[0]
    assert advice in words.splitlines()[1]
    assert hands.jobs() == []


def test_a_refusal_of_a_pod_that_is_made_anew_has_its_advice_too() -> None:
    words = 'violates PodSecurity "restricted": (container "init-pytorch" must set)'
    events = [event("j", "FailedCreatePod", f"Error creating: {words}")]
    found = of(pod(0), pod(1), events=events, living={"j-master-0"})
    assert "--pytorch-init-container-template-file" in found.message
    assert words not in first_line(of(pod(0), pod(1), events=events))


def test_a_conflict_that_does_not_pass_is_told_in_the_servers_words(step: Any, hands: Any) -> None:
    words = 'Operation cannot be fulfilled on resourcequotas "jobs": the object has been modified'
    hands.fault(Answer(409, message=words), "create", times=None)
    assert words in step(limits={"deletion": 0.5}).failed(JobFailed)
