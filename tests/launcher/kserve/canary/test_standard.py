"""Canaries in Standard mode: deployed beside, promoted in place, taken back, against everybody."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from harness.faults.actions import Call
from harness.faults.plan import Fault

from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.canary.changing import NotTheRevision, RolloutFailed

Object = dict[str, Any]
Start = Rolls = Callable[..., Any]
KServe = Canary = Until = Any


def spec_of(kserve: KServe) -> Object:
    return dict((kserve.service() or {})["spec"])


def stable(kserve: KServe) -> str:
    return str(spec_of(kserve)["predictor"]["annotations"][SPEC_HASH_LABEL])


def test_a_canary_is_beside_the_stable_predictor_which_stays_as_it_is(
    kserve: KServe, canary: Canary, start: Start, deployed: Object, until: Until, check_crd: Any
) -> None:
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=0, max_replicas=3)
    until(lambda: canary.entry)
    assert step.goes_on(), "its pods are not there"
    assert canary.entry["trafficPercent"] == 0
    canary.comes()
    found = step.succeeded()
    assert found.canary_url == (
        "http://digits-canary-predictor.default.svc.cluster.local/v1/models/digits:predict"
    )
    assert found.stable_url == found.cluster_url
    assert found.revision == canary.revision
    now = copy.deepcopy(kserve.service())
    assert now["spec"]["predictor"] == deployed["spec"]["predictor"]
    assert now["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
    now.pop("status")
    check_crd("inferenceservices", now)


def test_the_first_revision_is_no_canary_and_says_so(
    kserve: KServe, start: Start, until: Until, capsys: Any
) -> None:
    step = start(canary_traffic_percent=0)
    until(kserve.service)
    kserve.serves()
    found = step.succeeded()
    assert (found.canary_url, found.stable_url) == ("", "")
    assert "canary" not in spec_of(kserve)
    assert "no revision of it serves yet" in " ".join(capsys.readouterr().out.split())


def test_a_revision_that_serves_already_becomes_no_canary(
    kserve: KServe, start: Start, deployed: Object
) -> None:
    assert start(canary_traffic_percent=0).succeeded().canary_url == ""
    assert kserve.service()["metadata"]["generation"] == deployed["metadata"]["generation"]


def test_a_canary_that_never_is_ready_fails_the_step_and_leaves_users_alone(
    kserve: KServe, canary: Canary, start: Start, deployed: Object, until: Until
) -> None:
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=0, timeout=1)
    until(lambda: canary.entry)
    canary.comes(available=0)
    message = step.failed()
    assert message.startswith("The canary of InferenceService default/digits does not serve")
    assert "users are not affected" in message
    assert stable(kserve) == deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]


def test_a_kserve_without_canaries_is_told_by_its_schema(
    server: Any, kserve: KServe, start: Start, deployed: Object
) -> None:
    schema = server.api.registry.of(INFERENCE_SERVICE).schema
    fields = schema["properties"]["spec"]["properties"]
    canary = fields.pop("canary")
    try:
        step = start(metadata={"sha256": "2"}, canary_traffic_percent=0)
        message = step.failed(InputError)
    finally:
        fields["canary"] = canary
    assert "have no spec.canary, which KServe has since 0.20" in message
    assert kserve.service()["metadata"]["generation"] == deployed["metadata"]["generation"]


def test_a_service_with_a_transformer_gets_no_canary(
    kserve: KServe, start: Start, deployed: Object
) -> None:
    container = {"name": "kserve-container", "image": "t:1"}
    kserve._mutate(
        INFERENCE_SERVICE,
        "digits",
        lambda obj: obj["spec"].update(transformer={"containers": [container]}),
    )
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=0)
    assert "has a transformer" in step.failed(InputError)


def test_a_plain_deployment_takes_the_canary_away(
    kserve: KServe, canary: Canary, start: Start, beside: Any, until: Until
) -> None:
    step = start(metadata={"sha256": "3"})
    until(lambda: not canary.entry)
    kserve.serves()
    step.succeeded()


def test_a_promotion_moves_the_canary_and_removes_it_once_it_serves(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, until: Until, check_crd: Any
) -> None:
    tested = canary.entry["predictor"]
    step = rolls("promote", revision=beside.revision)
    until(lambda: stable(kserve) == beside.revision)
    assert step.going(), "no pod of it is there"
    assert canary.entry, "the canary stays until then"
    predictor = spec_of(kserve)["predictor"]
    assert "name" not in predictor
    assert predictor["model"] == {k: v for k, v in tested["model"].items() if k != "name"}
    assert predictor["deploymentStrategy"]["rollingUpdate"]["maxUnavailable"] == 0
    promoted = copy.deepcopy(kserve.service())
    promoted.pop("status")
    check_crd("inferenceservices", promoted)
    kserve.serves()
    until(lambda: not canary.entry)
    assert step.going(), "its pods are still there"
    canary.goes()
    assert step.did() == "promoted"
    assert rolls("promote", revision=beside.revision).did() == "nothing to do"


def test_two_promotions_at_once_end_alike(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, until: Until
) -> None:
    canary.comes(available=0)
    steps = [rolls("promote", revision=beside.revision) for _ in range(2)]
    assert all(step.going() for step in steps), "the canary serves no more"

    def promote(obj: Object) -> None:
        obj["spec"]["predictor"] = obj["spec"].pop("canary")[0]["predictor"]

    kserve._mutate(INFERENCE_SERVICE, "digits", promote)
    canary.goes()
    kserve.serves()
    assert [step.did() for step in steps] == ["promoted"] * 2


def test_a_promoted_predictor_gets_the_replicas_that_were_asked_for(
    kserve: KServe, canary: Canary, start: Start, deployed: Object, rolls: Rolls, until: Until
) -> None:
    scale = {"min_replicas": 1, "max_replicas": 4, "scale_metric": "cpu", "scale_target": 70}
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=0, **scale)
    until(lambda: canary.entry)
    assert not {"maxReplicas", "scaleMetric"} & set(canary.entry["predictor"])
    canary.comes()
    step.succeeded()
    roll = rolls("promote")
    until(lambda: stable(kserve) == canary.revision)
    kserve.serves()
    until(lambda: not canary.entry)
    canary.goes()
    roll.did()
    predictor = spec_of(kserve)["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (1, 4)
    assert (predictor["scaleMetric"], predictor["scaleTarget"]) == ("cpu", 70)
    assert "kfp-pytorch/scale-when-promoted" not in predictor["annotations"]


def test_a_rollback_removes_the_canary_and_once_more_is_nothing_to_do(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, deployed: Object, until: Until
) -> None:
    step = rolls("rollback", revision=beside.revision)
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "rolled back"
    assert stable(kserve) == deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]
    assert rolls("rollback", revision=beside.revision).did() == "nothing to do"


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_the_first_revision_leaves_nothing_to_do(
    deployed: Object, rolls: Rolls, action: str, kserve: KServe
) -> None:
    assert rolls(action, revision=stable(kserve)).did() == "nothing to do"


def test_a_canary_that_somebody_else_deployed_after_the_check_is_not_promoted(
    kserve: KServe, canary: Canary, start: Start, rolls: Rolls, beside: Any, until: Until
) -> None:
    step = start(metadata={"sha256": "3"}, canary_traffic_percent=0)
    until(lambda: canary.revision != beside.revision)
    message = rolls("promote", revision=beside.revision).failed(NotTheRevision)
    assert f"no canary of revision {beside.revision}" in message
    assert canary.revision in message
    assert rolls("rollback", revision=beside.revision).did() == "nothing to do"
    kserve.server.call(kserve.server.api.delete, DEPLOYMENT, "default", "digits-canary-predictor")
    canary.comes()
    step.succeeded()


def test_a_promotion_that_was_stopped_between_its_two_writes_is_ended_by_the_next_attempt(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, until: Until
) -> None:
    first = rolls("promote", revision=beside.revision, timeout=1)
    until(lambda: stable(kserve) == beside.revision)
    message = first.failed(RolloutFailed)
    assert "does not serve the new revision: after 1 s (timeout)" in message
    assert canary.entry
    kserve.serves()
    step = rolls("promote", revision=beside.revision)
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "promoted"


class WrittenBetween:
    """Somebody writes the service just before the step's own write comes."""

    def __init__(self, server: Any, change: Callable[[Object], Any]) -> None:
        self._api, self._change = server.api, change

    async def strike(self, call: Call) -> None:
        self._api.mutate(INFERENCE_SERVICE, "default", "digits", lambda o: self._change(o) and None)
        await call.handle()


def test_conflict_after_conflict_is_outlasted(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, until: Until
) -> None:
    count = iter(range(1000))
    storm = WrittenBetween(
        kserve.server, lambda obj: obj["metadata"].update(labels={"n": str(next(count))})
    )
    kserve.server.faults.add(Fault(storm, "update", "*/inferenceservices*", times=8))
    step = rolls("promote", revision=beside.revision)
    until(lambda: stable(kserve) == beside.revision)
    assert next(count) == 8
    kserve.serves()
    until(lambda: not canary.entry)
    canary.goes()
    assert step.did() == "promoted"


def test_a_canary_that_is_changed_between_read_and_write_is_not_promoted(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, deployed: Object
) -> None:
    def replace(obj: Object) -> None:
        obj["spec"]["canary"][0]["predictor"]["annotations"][SPEC_HASH_LABEL] = "f" * 16

    between = WrittenBetween(kserve.server, replace)
    kserve.server.faults.add(Fault(between, "update", "*/inferenceservices*", times=1))
    message = rolls("promote", revision=beside.revision).failed(NotTheRevision)
    assert "f" * 16 in message
    assert stable(kserve) == deployed["spec"]["predictor"]["annotations"][SPEC_HASH_LABEL]


def test_a_service_that_is_deleted_meanwhile_ends_the_step_with_that(
    kserve: KServe, canary: Canary, rolls: Rolls, beside: Any, until: Until
) -> None:
    step = rolls("promote", revision=beside.revision)
    until(lambda: stable(kserve) == beside.revision)
    kserve.server.call(kserve.server.api.delete, INFERENCE_SERVICE, "default", "digits")
    assert "digits was deleted " in step.failed(RolloutFailed)
    assert "There is no InferenceService" in rolls("rollback").failed(RolloutFailed)


def test_what_a_canary_leaves_out_and_kserve_fills_in_is_known() -> None:
    from kfp_pytorch.launcher.kserve.canary.spec import inherited

    model = {"storageUri": "pvc://a/b", "env": [{"name": "A", "value": "1"}]}
    service = {
        "spec": {
            "predictor": {"model": model, "minReplicas": 2, "nodeSelector": {"disk": "ssd"}},
            "canary": [{"predictor": {"name": "canary", "model": {"storageUri": "pvc://a/c"}}}],
        }
    }
    assert inherited(service) == ["model.env", "nodeSelector"]
