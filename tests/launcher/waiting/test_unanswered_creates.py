"""A job that cannot be created, because the API server does not answer or accept the request."""

from __future__ import annotations

from typing import Any

from harness.faults.actions import Answer, LostAnswer

from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kubernetes.api_errors import Unauthorized
from kfp_pytorch.launcher.kubernetes.client import connect
from kfp_pytorch.launcher.kubernetes.credentials import Credentials
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy


def test_a_server_that_is_not_there_fails_soon_and_names_its_address(step: Any) -> None:
    def load() -> Credentials:
        return Credentials("http://127.0.0.1:9", "default", "KUBECONFIG=/some/file")

    policy = RetryPolicy(unavailability_budget=60, first_contact=0.3, pause=0.05)
    words = step(on=connect(policy=policy, load_credentials=load)).failed(CannotObserve)
    assert "http://127.0.0.1:9" in words
    assert "KUBECONFIG=/some/file" in words


def test_401_is_retried_within_the_unavailability_budget(
    step: Any, hands: Any, impatient: Any
) -> None:
    hands.fault(Answer(401), "create", times=None)
    assert "does not accept the credentials" in step(on=impatient).failed(CannotObserve)
    assert hands.count("create", "pytorchjobs") > 5


def test_credentials_that_were_never_accepted_are_named_as_the_cause(
    step: Any, hands: Any, impatient: Any
) -> None:
    hands.fault(Answer(401), "", "*", times=None)
    assert "does not accept the credentials" in step(on=impatient).failed(Unauthorized)


def test_a_create_that_is_never_answered_says_that_a_job_may_be_there(
    step: Any, hands: Any, impatient: Any
) -> None:
    hands.fault(LostAnswer("reset"), "create")
    hands.fault(Answer(503), "create", times=None)
    words = step(on=impatient).failed(CannotObserve)
    assert "Whether PyTorchJob default/pytorch-job-" in words
    assert len(hands.jobs()) == 1


def test_a_webhook_that_does_not_answer_is_named_and_not_the_api_server(
    step: Any, impatient: Any, hands: Any
) -> None:
    words = 'failed calling webhook "validator.training": no endpoints available for service "w"'
    hands.fault(Answer(500, "InternalError", words), "create", times=None)
    said = step(on=impatient).failed(CannotObserve)
    assert words in said
    assert "the webhook" in said
    assert "Check that the API server runs" not in said
