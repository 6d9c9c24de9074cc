"""A signal while a deployment goes on, in its own process: what it leaves, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Stall
from harness.faults.plan import Fault
from harness.model_server import Answer, serving
from harness.step_process import StepProcess

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL

KServe = ThreadedServer = Until = Any
PATH = "/v1/models/digits:predict"
SAMPLES = [{"instances": [1], "predictions": [1]}]


@pytest.fixture
def deploying(server: ThreadedServer, tmp_path: Path) -> Callable[[], StepProcess]:
    artifacts = {"service": {}, "model": {"uri": "minio://b/model"}}
    environ = {"KUBECONFIG": str(server.kubeconfig)}
    return lambda: StepProcess(tmp_path, environ, "kserve_deploy", artifacts, service_name="digits")


def test_a_service_that_was_written_is_left_and_named_with_its_revision(
    server: ThreadedServer, kserve: KServe, deploying: Callable[[], StepProcess], until: Until
) -> None:
    step = deploying()
    until(lambda: kserve.service() and looked_at(server))
    words = step.ended()
    carried = (kserve.service() or {})["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert words == (
        "Stopped by a signal; InferenceService default/digits is left as it is, and may still "
        f"serve this step's revision {carried}."
    )


def test_a_write_in_flight_is_not_said_to_be_made_or_not(
    server: ThreadedServer, deploying: Callable[[], StepProcess], until: Until
) -> None:
    server.faults.add(Fault(Stall(), "create", "*/inferenceservices*", times=None))
    step = deploying()
    until(server.faults.struck)
    words = step.ended()
    assert "whether InferenceService default/digits was changed is not known" in words


def looked_at(server: ThreadedServer) -> bool:
    """Whether the step has gone on to wait."""
    return any("deployments" in request.path for request in server.requests)


@pytest.mark.parametrize("asking", ["kserve_predict", "canary_check"])
def test_requests_in_flight_are_not_waited_for(asking: str, tmp_path: Path, until: Until) -> None:
    with serving(lambda *_: Answer(first_pause_s=60)) as model:
        slow = model.root + PATH
        urls = {"url": slow}
        artifacts: Any = {"predictions": {}, "latencies": {}}
        if asking == "canary_check":
            urls = {"canary_url": slow, "stable_url": slow.replace("digits", "stable")}
            artifacts = {"report": {}}
        step = StepProcess(tmp_path, {}, asking, artifacts, requests=SAMPLES, concurrency=8, **urls)
        until(lambda: model.bodies)
        assert step.ended() == "Stopped by a signal."
    assert not list(tmp_path.glob("report"))
