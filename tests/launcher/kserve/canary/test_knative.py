"""Canaries in Knative mode: a share of the traffic, all of it, none; done already is success."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import KNATIVE_REVISION, SPEC_HASH_LABEL
from kfp_pytorch.launcher.kserve.canary.changing import NotTheRevision, RolloutFailed
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kserve.knative.revisions import DEFINITION

Object = dict[str, Any]
Rolls = Start = Callable[..., Any]
KServe = Until = Any
ADDRESS = "http://digits-predictor.default.svc.cluster.local"
URL = "http://digits.default.example.com"


@pytest.fixture
def api() -> Api:
    """A cluster that has Knative."""
    return Api(Registry([DEFINITION]))


class Knative:
    """Plays KServe's controller in Knative mode, and Knative."""

    def __init__(self, kserve: KServe) -> None:
        self._kserve = kserve

    @property
    def percent(self) -> int | None:
        predictor = (self._kserve.service() or {})["spec"]["predictor"]
        return predictor.get("canaryTrafficPercent")  # type: ignore[no-any-return]

    @property
    def revision(self) -> str:
        predictor = (self._kserve.service() or {})["spec"]["predictor"]
        return str(predictor["annotations"][SPEC_HASH_LABEL])

    def makes(self, name: str) -> None:
        metadata = {
            "name": name,
            "namespace": "default",
            "annotations": {SPEC_HASH_LABEL: self.revision},
        }
        self._kserve._create(KNATIVE_REVISION, {"metadata": metadata})

    def routes(self, created: str, ready: str = "", **shares: int) -> None:
        tags = dict.fromkeys(shares, "prev") | {ready or created: "latest"}
        traffic = [
            {
                "revisionName": name,
                "percent": percent,
                "latestRevision": tags[name] == "latest",
                "tag": tags[name],
                "url": f"http://{tags[name]}-digits-predictor.default.example.com",
            }
            for name, percent in shares.items()
        ]
        predictor = {
            "address": {"url": ADDRESS},
            "latestCreatedRevision": created,
            "latestReadyRevision": ready or created,
            "latestRolledoutRevision": "r1",
            "traffic": traffic,
        }
        self._kserve.says(
            "True", url=URL, deploymentMode="Knative", components={"predictor": predictor}
        )


@pytest.fixture
def knative(kserve: KServe) -> Knative:
    return Knative(kserve)


@pytest.fixture
def split(kserve: KServe, knative: Knative, start: Start, until: Until) -> Any:
    """A canary `r2` with a tenth of the traffic, the rest of which `r1` has."""
    first = start(deployment_mode="Knative", canary_traffic_percent=10)
    until(kserve.service)
    assert knative.percent is None, "the first revision gets all"
    knative.makes("r1")
    knative.routes("r1", r1=100)
    assert first.succeeded().canary_url == ""
    step = start(metadata={"sha256": "2"}, deployment_mode="Knative", canary_traffic_percent=10)
    until(lambda: knative.percent == 10)
    knative.makes("r2")
    knative.routes("r2", r2=10, r1=90)
    return step.succeeded()


def test_canary_and_stable_revision_have_an_address_each_within_the_cluster(split: Any) -> None:
    path = "digits-predictor.default.svc.cluster.local/v1/models/digits:predict"
    assert split.canary_url == f"http://latest-{path}"
    assert split.stable_url == f"http://prev-{path}"


def test_a_promotion_ends_when_the_canary_has_all_of_the_traffic(
    knative: Knative, split: Any, rolls: Rolls, until: Until
) -> None:
    step = rolls("promote", revision=split.revision)
    until(lambda: knative.percent is None)
    assert step.going(), "it still has a tenth"
    knative.routes("r2", r2=100)
    assert step.did() == "promoted"
    assert rolls("promote", revision=split.revision).did() == "nothing to do"
    assert rolls("rollback", revision=split.revision).did() == "nothing to do"


def test_a_rollback_ends_when_the_revision_before_has_all_of_the_traffic(
    knative: Knative, split: Any, rolls: Rolls, until: Until
) -> None:
    step = rolls("rollback", revision=split.revision)
    until(lambda: knative.percent == 0)
    assert step.going(), "it still has a tenth"
    knative.routes("r2", r2=0, r1=100)
    assert step.did() == "rolled back"
    assert rolls("rollback", revision=split.revision).did() == "rolled back"


def test_a_canary_that_never_was_ready_can_be_taken_back(
    kserve: KServe, knative: Knative, split: Any, start: Start, rolls: Rolls, until: Until
) -> None:
    deploying = {"deployment_mode": "Knative", "canary_traffic_percent": 10, "timeout": 1}
    step = start(metadata={"sha256": "3"}, **deploying)
    until(lambda: knative.revision != split.revision)
    knative.makes("r3")
    knative.routes("r3", ready="r1", r1=100)
    revision = knative.revision
    assert "revision r3 to be ready" in step.failed()
    knative.routes("r3", ready="r2", r2=10, r1=90)
    roll = rolls("rollback", revision=revision)
    until(lambda: knative.percent == 0)
    knative.routes("r3", ready="r2", r2=0, r1=100)
    assert roll.did() == "rolled back"


def test_a_canary_that_does_not_serve_is_not_promoted(
    kserve: KServe, knative: Knative, split: Any, start: Start, rolls: Rolls, until: Until
) -> None:
    deploying = {"deployment_mode": "Knative", "canary_traffic_percent": 10, "timeout": 1}
    step = start(metadata={"sha256": "3"}, **deploying)
    until(lambda: knative.revision != split.revision)
    knative.makes("r3")
    knative.routes("r3", ready="r2", r2=10, r1=90)
    step.failed()
    message = rolls("promote", timeout=1).failed(RolloutFailed)
    assert "The previous revision still serves" in message
    assert knative.percent == 10


def test_a_canary_that_kserve_has_not_taken_up_is_taken_back_all_the_same(
    kserve: KServe, knative: Knative, start: Start, rolls: Rolls, until: Until
) -> None:
    first = start(deployment_mode="Knative")
    until(kserve.service)
    knative.makes("r1")
    knative.routes("r1", r1=100)
    stable = first.succeeded().revision
    deploying = {"deployment_mode": "Knative", "canary_traffic_percent": 10, "timeout": 1}
    start(metadata={"sha256": "2"}, **deploying).failed()
    assert knative.percent == 10
    step = rolls("rollback", revision=knative.revision)
    until(lambda: knative.percent == 0)
    assert step.going(), "the status is that of the revision before"
    knative.makes("r2")
    knative.routes("r2", r2=0, r1=100)
    assert step.did() == "rolled back"
    assert step.outputs.revision == stable


def test_a_revision_that_somebody_else_deployed_is_not_promoted(
    knative: Knative, split: Any, start: Start, rolls: Rolls, until: Until
) -> None:
    step = start(metadata={"sha256": "3"}, deployment_mode="Knative", canary_traffic_percent=20)
    until(lambda: knative.percent == 20)
    message = rolls("promote", revision=split.revision).failed(NotTheRevision)
    assert knative.revision in message
    assert rolls("rollback", revision=split.revision).did() == "nothing to do"
    assert knative.percent == 20
    knative.makes("r3")
    knative.routes("r3", r3=20, r1=80)
    step.succeeded()


def test_a_revision_that_serves_all_is_not_split_by_deploying_it_again_as_a_canary(
    knative: Knative, split: Any, start: Start, rolls: Rolls, until: Until
) -> None:
    step = rolls("promote")
    until(lambda: knative.percent is None)
    knative.routes("r2", r2=100)
    step.did()
    again = start(metadata={"sha256": "2"}, deployment_mode="Knative", canary_traffic_percent=10)
    assert again.succeeded().canary_url == ""
    assert knative.percent is None
