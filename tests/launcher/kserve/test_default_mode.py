"""KServe's default mode is Knative, of which the service says nothing, and Knative is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.held import Clock

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.launcher.kserve.deploy import Timing
from kfp_pytorch.launcher.kserve.names import MODE_ANNOTATION

Start = Callable[..., Any]
Until = Callable[..., Any]
KServe = Any


def test_a_mode_that_kserve_rejects_ends_the_step_within_seconds_of_its_900(
    kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    step = start(Timing(), timeout=900)
    until(kserve.service)
    kserve.rejects_the_mode()
    clock.ahead += 4
    assert step.goes_on()
    clock.ahead += 10
    first, advice, *more = step.failed().split("\n")
    assert "cannot serve this spec: ServerlessModeRejected: It is not possible" in first
    assert advice.startswith("What to do: Set deployment_mode to 'Standard'")
    assert any(line.startswith("Event of InferenceService digits: Serverless") for line in more)


def test_a_mode_that_kserves_webhook_fills_in_is_compared_with_what_the_server_serves(
    kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    step = start(Timing(), timeout=900)
    until(kserve.service)
    mode = {MODE_ANNOTATION: "Knative"}
    kserve._mutate(INFERENCE_SERVICE, "digits", lambda o: o["metadata"].update(annotations=mode))
    clock.ahead += 4
    assert step.goes_on()
    clock.ahead += 10
    first, advice, *_ = step.failed().split("\n")
    assert "the cluster has no Knative Serving" in first
    assert "deployment_mode to 'Standard'" in advice


def test_the_default_mode_is_named_where_kserve_says_nothing_at_all(
    kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    step = start(Timing(), timeout=900)
    until(kserve.service)
    assert step.goes_on()
    clock.ahead += 870
    assert step.goes_on()
    # A minute that passes during a request is the server's, and does not count.
    while step.going():
        clock.ahead += 40
    first, advice, *_ = step.failed().split("\n")
    assert "after 900 s (timeout) it still waits for the controller" in first
    assert "the cluster has no Knative Serving" in first
    assert "deployment_mode to 'Standard'" in advice
    assert "kserve-controller-manager" in advice


def test_an_event_of_an_earlier_service_of_that_name_ends_nothing(
    kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    step = start(Timing(), timeout=900)
    until(kserve.service)
    kserve.rejects_the_mode("of-an-earlier-one")
    assert step.goes_on()
    clock.ahead += 60
    assert step.goes_on()
    kserve.serves()
    step.succeeded()


def test_a_rejection_that_kserve_took_back_ends_nothing(
    kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    """Its controller was started again with another default mode."""
    step = start(Timing(), timeout=900)
    until(kserve.service)
    kserve.rejects_the_mode()
    assert step.goes_on()
    kserve.rolls_out(available=0)
    kserve.says("False")
    assert step.goes_on()
    clock.ahead += 60
    assert step.goes_on()
    kserve.serves()
    step.succeeded()
