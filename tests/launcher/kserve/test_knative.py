"""Rollouts, canaries and their ends in Knative mode, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, KNATIVE_REVISION, SPEC_HASH_LABEL
from kfp_pytorch.launcher.kubernetes.api_errors import Refused
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kserve.webhook import check

URL = "http://digits.default.example.com"
REVISIONS = {
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "revisions.serving.knative.dev"},
    "spec": {
        "group": KNATIVE_REVISION.group,
        "scope": "Namespaced",
        "names": {
            "kind": KNATIVE_REVISION.kind,
            "plural": KNATIVE_REVISION.plural,
            "singular": "revision",
        },
        "versions": [
            {
                "name": KNATIVE_REVISION.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}

Object = dict[str, Any]
Start = Callable[..., Any]
Until = Callable[..., Any]
KServe = ThreadedServer = Any


@pytest.fixture
def api() -> Api:
    """A cluster that has Knative."""
    return Api(Registry([REVISIONS]))


class Knative:
    """Plays KServe's controller in Knative mode, and Knative."""

    def __init__(self, kserve: KServe, until: Until) -> None:
        self._kserve, self._until = kserve, until
        self.rolled_out = self.before = ""

    def predictor(self) -> Object:
        return (self._kserve.service() or {}).get("spec", {}).get("predictor", {})  # type: ignore[no-any-return]

    def is_waited_for(self, step: Any) -> bool:
        """Whether the step goes on after several looks."""
        seen = self._looks()
        self._until(lambda: not step.going(0) or self._looks() > seen + 6)
        return bool(step.going(0))

    def _looks(self) -> int:
        requests = self._kserve.server.requests
        return sum(r.verb == "get" and "/inferenceservices/" in r.path for r in requests)

    def makes(self, revision: str) -> None:
        """Makes a Revision of the service's spec."""
        carried = self.predictor()["annotations"][SPEC_HASH_LABEL]
        metadata = {
            "name": revision,
            "namespace": "default",
            "annotations": {SPEC_HASH_LABEL: carried},
        }
        self._kserve._create(KNATIVE_REVISION, {"metadata": metadata})

    def _tag(self, tag: str) -> Object:
        """A tag with its address, where KServe is to make them."""
        annotations = self.predictor().get("annotations", {})
        wanted = annotations.get("serving.kserve.io/enable-tag-routing") == "true"
        url = f"http://{tag}-digits-predictor.default.example.com"
        return {"tag": tag, "url": url} if wanted else {}

    def routes(self, revision: str, **shares: int) -> None:
        """Says that a Revision is the newest, ready, and which gets how much of the traffic."""
        if shares == {revision: 100} and self.rolled_out != revision:
            self.before, self.rolled_out = self.rolled_out, revision
        predictor = {
            "latestCreatedRevision": revision,
            "latestReadyRevision": revision,
            "latestRolledoutRevision": self.rolled_out,
            "previousRolledoutRevision": self.before,
            "traffic": [
                {
                    "revisionName": name,
                    "percent": percent,
                    "latestRevision": name == revision,
                    **self._tag("latest" if name == revision else "prev"),
                }
                for name, percent in shares.items()
            ],
        }
        self._kserve.says(
            "True", url=URL, deploymentMode="Knative", components={"predictor": predictor}
        )


@pytest.fixture
def knative(kserve: KServe, until: Until) -> Knative:
    return Knative(kserve, until)


@pytest.fixture
def serving(kserve: KServe, knative: Knative, start: Start, until: Until) -> Start:
    """Starts steps of one service, whose first revision `r1` serves."""

    def step(sha256: str, **inputs: Any) -> Any:
        inputs = {"deployment_mode": "Knative", "timeout": 60} | inputs
        return start(metadata={"sha256": sha256}, **inputs)

    first = step("1")
    until(kserve.service)
    knative.makes("r1")
    knative.routes("r1", r1=100)
    first.succeeded()
    return step


def canary(knative: Knative, serving: Start, until: Until, percent: int = 10) -> None:
    """Deploys a second model, `r2`, as a canary."""
    step = serving("2", canary_traffic_percent=percent)
    until(lambda: knative.predictor().get("canaryTrafficPercent") == percent)
    knative.makes("r2")
    assert knative.is_waited_for(step), "the new revision is not there"
    knative.routes("r2", r2=percent, r1=100 - percent)
    step.succeeded()


def test_a_canary_that_has_proved_itself_gets_all_of_the_traffic(
    knative: Knative, serving: Start, until: Until
) -> None:
    canary(knative, serving, until)
    step = serving("2")
    until(lambda: "canaryTrafficPercent" not in knative.predictor())
    assert knative.is_waited_for(step), "it still has a tenth"
    knative.routes("r2", r2=100)
    step.succeeded()


@pytest.mark.parametrize("percent", [0, 5])
def test_a_canary_loses_traffic_before_the_step_says_so(
    knative: Knative, serving: Start, until: Until, percent: int
) -> None:
    canary(knative, serving, until, 50)
    step = serving("2", canary_traffic_percent=percent)
    until(lambda: knative.predictor().get("canaryTrafficPercent") == percent)
    assert knative.is_waited_for(step), "it still has half of the traffic"
    knative.routes("r2", r2=percent, r1=100 - percent)
    step.succeeded()


def test_a_revision_that_serves_alone_is_taken_back_before_the_step_says_so(
    knative: Knative, serving: Start, until: Until
) -> None:
    canary(knative, serving, until)
    knative.routes("r2", r2=100)
    step = serving("2", canary_traffic_percent=0)
    until(lambda: knative.predictor().get("canaryTrafficPercent") == 0)
    assert knative.is_waited_for(step), "it still has all of the traffic"
    knative.routes("r2", r2=0, r1=100)
    step.succeeded()


def test_the_first_revision_of_a_service_gets_all_whatever_its_canary(
    kserve: KServe, knative: Knative, start: Start, until: Until
) -> None:
    step = start(deployment_mode="Knative", canary_traffic_percent=10)
    until(kserve.service)
    knative.makes("r1")
    knative.routes("r1", r1=100)
    step.succeeded()


def test_a_webhooks_refusal_ends_the_step_at_once_with_its_words(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    server.call(server.api.add_webhook, INFERENCE_SERVICE, check)
    message = start(deployment_mode="Knative").failed(Refused)
    assert "deploymentMode cannot be changed from 'Standard' to 'Knative'" in message
    assert kserve.service() is not None
