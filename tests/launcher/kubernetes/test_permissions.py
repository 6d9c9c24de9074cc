"""401 and 403 of a server that starts, and permissions that are missing, at the shipped limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from harness.faults.actions import Answer, Forbidden
from harness.faults.restart import Restart
from harness.hands import connected

from kfp_pytorch.launcher.constants import CLAIM, EVENT, POD, PYTORCHJOB
from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kubernetes import permissions
from kfp_pytorch.launcher.kubernetes.api_errors import Call, Transient
from kfp_pytorch.launcher.kubernetes.api_errors import Forbidden as Denied
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.permissions import Permissions, Readiness
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy

JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "j"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}
        }
    },
}
CALL = Call("get", "pods", "", "default", "a")


@pytest.fixture
def shipped(hands: Any) -> Kube:
    """A new connection, as a step makes it."""
    return connected(hands.server, RetryPolicy())


CALLS: dict[str, Callable[[Kube], Any]] = {
    "get": lambda kube: kube.get(CLAIM, "kfp-pytorch"),
    "list": lambda kube: kube.list(POD),
    "events": lambda kube: kube.list(EVENT),
    "create": lambda kube: kube.create(PYTORCHJOB, JOB),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_begins_while_the_server_starts_is_answered(
    shipped: Kube, hands: Any, call: Callable[[Kube], Any]
) -> None:
    hands.server.restart(Restart(refused_s=0.2, forbidden_s=2.5))
    call(shipped)


def test_a_delete_while_the_server_starts_deletes(shipped: Kube, hands: Any) -> None:
    uid = shipped.create(PYTORCHJOB, JOB)["metadata"]["uid"]
    hands.server.restart(Restart(refused_s=0.2, forbidden_s=2.5))
    connected(hands.server, RetryPolicy()).delete(PYTORCHJOB, "j", uid)
    hands.until(lambda: hands.jobs() == [])


def test_eight_seconds_of_401_end_nothing(shipped: Kube, hands: Any) -> None:
    hands.fault(Answer(401), "get", "*", times=None, for_s=8.0)
    assert shipped.get(CLAIM, "kfp-pytorch")


def test_a_missing_permission_is_known_in_about_a_second(shipped: Kube, hands: Any) -> None:
    hands.fault(Forbidden(), "list", "*/pods", times=None)
    started = time.monotonic()
    with pytest.raises(Denied, match="system:serviceaccount:kubeflow:pipeline-runner may not list"):
        shipped.list(POD)
    assert time.monotonic() - started < 3.0


def test_one_403_is_not_final(shipped: Kube, hands: Any) -> None:
    hands.fault(Forbidden(), "list", "*/pods")
    assert shipped.list(POD) == []


def test_a_call_that_was_allowed_is_retried_within_the_budget(shipped: Kube, hands: Any) -> None:
    shipped.list(POD)
    hands.fault(Forbidden(), "list", "*/pods", times=None, for_s=4.0)
    assert shipped.list(POD) == []


def test_a_call_that_was_allowed_and_is_denied_for_good_is_not_observed(hands: Any) -> None:
    kube = connected(hands.server, RetryPolicy(unavailability_budget=1.0))
    kube.list(POD)
    hands.fault(Forbidden(), "list", "*/pods", times=None)
    with pytest.raises(CannotObserve, match="may not list pods"):
        kube.list(POD)


def test_a_stream_that_is_denied_once_is_not_a_missing_permission(
    shipped: Kube, hands: Any
) -> None:
    hands.fault(Forbidden(), "watch", "*")
    with pytest.raises(Transient):
        shipped.watch(POD)


@pytest.mark.slow
def test_a_missing_permission_is_known_in_half_a_minute_where_readyz_may_not_be_read(
    shipped: Kube, hands: Any
) -> None:
    hands.fault(Forbidden(), "list", "*/pods", times=None)
    hands.fault(Answer(403), "get", "/readyz", times=None)
    started = time.monotonic()
    with pytest.raises(Denied, match="may not list pods"):
        shipped.list(POD)
    assert 30 <= time.monotonic() - started < 50


def test_where_readyz_may_not_be_read_a_403_is_final_after_30_s() -> None:
    known = Permissions()
    for at in (0.0, 10.0, 29.0):
        assert not known.is_missing(CALL, Readiness.UNREADABLE, at)
    assert known.is_missing(CALL, Readiness.UNREADABLE, permissions.MISSING_AFTER)


def test_denials_while_the_server_starts_do_not_count() -> None:
    known = Permissions()
    for at in range(100):
        assert not known.is_missing(CALL, Readiness.STARTING, at)
    assert not known.is_missing(CALL, Readiness.READY, 100.0)
    assert known.is_missing(CALL, Readiness.READY, 100.1)


def test_requests_of_several_threads_at_one_moment_count_once() -> None:
    known = Permissions()
    found: list[bool] = []
    for _ in range(8):
        ask = threading.Thread(
            target=lambda: found.append(known.is_missing(CALL, Readiness.READY, 1.0))
        )
        ask.start()
        ask.join()
    assert not any(found)


def test_denials_of_long_ago_do_not_count() -> None:
    known = Permissions()
    assert not known.is_missing(CALL, Readiness.READY, 0.0)
    assert not known.is_missing(CALL, Readiness.READY, 1000.0)
