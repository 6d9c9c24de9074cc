"""The step `canary_check`: requests to two servers, the decision, and its report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.model_server import Answer, ModelServer, digits, serving
from harness.ports import free_port
from harness.predict_step import Artifact

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.steps.canary_check import Outputs, run

SAMPLES = [{"instance": i, "prediction": i, "label": i} for i in range(10)]
PATH = "/v1/models/digits:predict"


class Check:
    """Runs the step with a canary and a stable revision."""

    def __init__(self, folder: Path, canary: str, stable: str) -> None:
        self._folder, self.canary, self.stable = folder, canary, stable

    @property
    def report(self) -> str:
        return (self._folder / "report").read_text()

    def __call__(self, samples: Any = SAMPLES, **inputs: Any) -> Outputs:
        model = self._folder / "model"
        model.write_text(json.dumps({"model": {}, "samples": samples}))
        urls = {"canary_url": self.canary, "stable_url": self.stable}
        # Other tests may take this machine's time.
        given = {**urls, "request_count": 20, "latency_tolerance": 30, **inputs}
        return run(Artifact(str(self._folder / "report")), Artifact(str(model)), **given)


def wrong_from(first: int) -> Any:
    """A classifier that takes the instances from this one on for zeros."""

    def respond(path: str, body: Any) -> Answer:
        return digits(path, {"instances": [i if i < first else 0 for i in body["instances"]]})

    return respond


@pytest.fixture
def canary() -> Iterator[ModelServer]:
    with serving(digits) as server:
        yield server


@pytest.fixture
def stable() -> Iterator[ModelServer]:
    with serving(digits) as server:
        yield server


@pytest.fixture
def check(canary: ModelServer, stable: ModelServer, tmp_path: Path) -> Check:
    return Check(tmp_path, canary.root + PATH, stable.root + PATH)


def test_a_canary_that_is_as_good_is_promoted_after_as_many_requests_to_both(
    check: Check, canary: ModelServer, stable: ModelServer
) -> None:
    found = check()
    assert found.decision == "promote"
    assert "0.0% errors, 100.0% of the answers right, p95 " in found.reason
    assert len(canary.bodies) == len(stable.bodies) == 21  # one until it answers
    assert check.report.count("<svg") == 2
    assert "<script" not in check.report


def test_without_a_canary_nothing_is_asked_and_the_decision_is_promote(
    check: Check, stable: ModelServer
) -> None:
    found = check(canary_url="", stable_url="")
    assert found.decision == "promote"
    assert "there is no canary" in found.reason
    assert found.reason in check.report
    assert stable.bodies == []


def test_a_canary_with_more_wrong_answers_is_rolled_back_and_one_with_fewer_promoted(
    check: Check, canary: ModelServer, stable: ModelServer
) -> None:
    canary.respond = wrong_from(8)
    found = check()
    assert found.decision == "rollback"
    assert "80.0% of the canary's answers are right, and 100.0% of the stable" in found.reason
    assert "wrong" in check.report
    canary.respond, stable.respond = wrong_from(8), wrong_from(5)
    assert check().decision == "promote"


def test_samples_without_labels_are_compared_with_the_canarys_own_answers(
    check: Check, stable: ModelServer
) -> None:
    stable.respond = wrong_from(0)
    own = [{"instance": i, "prediction": i} for i in range(10)]
    assert check(own).decision == "promote"
    found = check(own, min_agreement=0.9)
    assert found.reason == (
        "canary and stable revision answer alike in 10.0% of the cases, min_agreement is 90.0%"
    )


def test_requests_of_ones_own_replace_the_samples(check: Check, canary: ModelServer) -> None:
    canary.respond = wrong_from(0)
    found = check(requests=[{"instance": 4, "prediction": 4}, {"instance": 5}])
    assert found.decision == "rollback"
    assert canary.bodies[-1] in ({"instances": [4]}, {"instances": [5]})


def test_each_request_that_fails_counts_and_none_is_sent_again(
    check: Check, canary: ModelServer
) -> None:
    found_first = iter(range(1000))

    def every_fourth(path: str, body: Any) -> Answer:
        return Answer(503, b"busy") if next(found_first) % 4 == 3 else digits(path, body)

    canary.respond = every_fourth
    found = check(concurrency=1)
    assert found.decision == "rollback"
    assert found.reason == (
        "25.0% of the canary's requests failed, max_error_rate is 0.0%; most often: 503 busy"
    )
    assert len(canary.bodies) == 21
    assert check(concurrency=1, max_error_rate=0.25).decision == "promote"


def test_a_stable_revision_that_fails_is_no_reason_against_the_canary(
    check: Check, stable: ModelServer
) -> None:
    stable.respond = lambda *_: Answer(400, b"no")
    assert check().decision == "promote"
    assert "400 no" in check.report


def test_a_canary_that_cannot_be_reached_is_rolled_back_and_the_step_does_not_fail(
    check: Check, stable: ModelServer
) -> None:
    url = f"http://127.0.0.1:{free_port()}{PATH}"
    found = check(canary_url=url, ready_timeout=0)
    assert found.decision == "rollback"
    assert "100.0% of the canary's requests failed" in found.reason


def test_a_canary_that_stops_answering_is_not_asked_to_the_end(
    check: Check, canary: ModelServer
) -> None:
    answers = iter(range(1000))

    def hangs(path: str, body: Any) -> Answer:
        return digits(path, body) if next(answers) < 5 else Answer(first_pause_s=60)

    canary.respond = hangs
    found = check(request_timeout=1, concurrency=8, request_count=200)
    assert found.decision == "rollback"
    assert "of the canary's requests failed" in found.reason
    assert "it stopped answering" in found.reason
    assert len(canary.bodies) < 30


def test_a_start_from_nothing_is_waited_for_and_not_measured(
    check: Check, canary: ModelServer
) -> None:
    canary.first = [Answer(503, b"starting"), Answer(404)]
    assert check().decision == "promote"


def test_a_canary_that_is_slower_than_its_ratio_and_the_tolerance_is_rolled_back(
    check: Check, canary: ModelServer
) -> None:
    def slow(path: str, body: Any) -> Answer:
        return Answer(200, digits(path, body).parts, first_pause_s=0.08)

    canary.respond = slow
    found = check(request_count=4, latency_tolerance=0.01)
    assert found.decision == "rollback"
    assert "p50 of the canary's latency is" in found.reason
    assert check(request_count=4).decision == "promote"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"stable_url": ""}, "stable_url is not set. Give both"),
        ({"canary_url": "http://h/v1", "stable_url": "http://h/v1"}, "nothing to compare"),
        ({"canary_url": "ftp://h"}, "must begin with http"),
        ({"max_error_rate": 2}, "max_error_rate is 2; it must be a share"),
        ({"max_latency_ratio": {"p95": 0}}, "must be more than 0"),
        ({"max_latency_ratio": {"p42": 1}}, "p42"),
        ({"latency_tolerance": -1}, "must be seconds"),
        ({"requests": [{"instances": []}]}, "has no instances"),
    ],
)
def test_what_cannot_work_is_refused(check: Check, inputs: Any, said: str) -> None:
    with pytest.raises(InputError) as refused:
        check(**inputs)
    assert said in refused.value.message


def test_a_model_without_samples_and_no_requests_is_refused(check: Check) -> None:
    with contextlib.suppress(OSError), pytest.raises(InputError, match="nothing to ask"):
        check([])
