"""Which Revision gets the traffic: KServe's own rules, as pure functions."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.local.controllers.kserve.knative.traffic import TAG_ANNOTATION, component

Object = dict[str, Any]


class Service:
    """A service whose Revisions come and go."""

    def __init__(self, **annotations: str) -> None:
        self.predictor: Object = {"annotations": annotations}
        self.status: Object = {}

    def at(self, created: str, ready: str, percent: int | None = None) -> list[str]:
        """The shares, once KServe has looked as often as something changed."""
        self.predictor.pop("canaryTrafficPercent", None)
        if percent is not None:
            self.predictor["canaryTrafficPercent"] = percent
        while True:
            found = component(
                {
                    "metadata": {},
                    "spec": {"predictor": self.predictor},
                    "status": {"components": {"predictor": self.status}},
                },
                created,
                ready,
            )
            if found == self.status:
                return [f"{t['revisionName']}={t['percent']}" for t in found.get("traffic", [])]
            self.status = found


def test_the_first_revision_gets_all_once_it_is_ready() -> None:
    service = Service()
    assert service.at("r1", "") == []
    assert service.at("r1", "r1", 10) == ["r1=10", "r1=90"]  # KServe's own, once it is rolled out
    assert service.status["latestRolledoutRevision"] == "r1"


def test_a_canary_gets_its_share_when_it_is_ready_and_all_when_it_is_promoted() -> None:
    service = Service(**{TAG_ANNOTATION: "true"})
    assert service.at("r1", "r1") == ["r1=100"]
    assert service.at("r2", "r1", 10) == ["r1=10", "r1=90"]
    assert service.at("r2", "r2", 10) == ["r2=10", "r1=90"]
    assert [each["tag"] for each in service.status["traffic"]] == ["latest", "prev"]
    assert service.at("r2", "r2") == ["r2=100"]
    assert service.status["latestRolledoutRevision"] == "r2"
    assert service.status["previousRolledoutRevision"] == "r1"


def test_a_canary_that_is_taken_back_leaves_all_to_the_revision_before_it() -> None:
    service = Service()
    service.at("r1", "r1")
    assert service.at("r2", "r2", 10) == ["r2=10", "r1=90"]
    assert service.at("r2", "r2", 0) == ["r2=0", "r1=100"]
    assert service.at("r3", "r3", 10) == ["r3=10", "r1=90"]
    assert service.at("r3", "r3") == ["r3=100"]
    assert service.status["previousRolledoutRevision"] == "r1"


def test_a_revision_that_had_all_is_taken_back_to_the_one_before_it() -> None:
    service = Service()
    service.at("r1", "r1")
    service.at("r2", "r2")
    assert service.at("r2", "r2", 0) == ["r2=0", "r1=100"]
