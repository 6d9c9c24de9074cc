"""The status of an InferenceService from its Deployment and its newest pod."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kfp_pytorch.local.controllers.kserve.runtimes import Refusal
from kfp_pytorch.local.controllers.kserve.status import Observed, refused, status

NAMESPACE = "default"
NOW = datetime(2025, 11, 27, 12, 0, tzinfo=UTC)

Object = dict[str, Any]


def service() -> Object:
    model = {"modelFormat": {"name": "kfp-pytorch"}, "storageUri": "pvc://models/digits/export"}
    metadata = {"name": "digits", "namespace": NAMESPACE, "uid": "u-1"}
    return {"metadata": metadata, "spec": {"predictor": {"model": model}}}


def deployed(available: str = "True", progressing: str = "True", reason: str = "") -> Object:
    conditions = [
        {"type": "Available", "status": available, "reason": "A", "message": "a"},
        {
            "type": "Progressing",
            "status": progressing,
            "reason": reason or "NewReplicaSetAvailable",
            "message": "p",
        },
    ]
    return {"status": {"observedGeneration": 3, "conditions": conditions}}


def pod(name: str = "p", **status_: Any) -> Object:
    return {"metadata": {"name": name}, "status": status_}


def conditions(found: Object) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c.get("reason", "")) for c in found["conditions"]}


def test_a_ready_deployment_makes_the_service_ready(
    check_crd: Callable[[str, Object], None],
) -> None:
    observed = Observed(
        deployed(), (pod(), pod("terminating")), "http://127.0.0.1:1", "kfp-pytorch"
    )
    found = status(service(), observed, NOW)
    assert conditions(found) == {
        "IngressReady": ("True", ""),
        "PredictorReady": ("True", "NewReplicaSetAvailable"),
        "Ready": ("True", ""),
        "Stopped": ("False", ""),
    }
    assert found["url"] == found["components"]["predictor"]["url"] == "http://127.0.0.1:1"
    assert found["modelStatus"]["transitionStatus"] == "UpToDate"
    assert found["modelStatus"]["copies"] == {"failedCopies": 0, "totalCopies": 2}
    whole = {**service(), "status": found, "apiVersion": "serving.kserve.io/v1beta1"}
    check_crd("inferenceservices", whole | {"kind": "InferenceService"})


@pytest.mark.parametrize(
    ("deployment", "expected"),
    [
        ({}, ("False", "")),
        (deployed("False", reason="ReplicaSetUpdated"), ("False", "A")),
        (deployed(reason="NewReplicaSetCreated"), ("Unknown", "NewReplicaSetCreated")),
        (deployed(reason="ReplicaSetUpdated"), ("Unknown", "ReplicaSetUpdated")),
        (
            deployed(progressing="False", reason="ProgressDeadlineExceeded"),
            ("False", "ProgressDeadlineExceeded"),
        ),
    ],
)
def test_ready_follows_the_deployment_and_the_address_is_there_from_the_first(
    deployment: Object, expected: tuple[str, str]
) -> None:
    found = status(service(), Observed(deployment, (), "http://h:1"), NOW)
    assert conditions(found)["PredictorReady"] == conditions(found)["Ready"] == expected
    assert conditions(found)["IngressReady"] == ("True", "")
    assert found["url"] == found["address"]["url"] == "http://h:1"
    assert found["modelStatus"]["transitionStatus"] == "InProgress"


def test_pods_that_are_refused_are_the_reason() -> None:
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "m"}
    deployment = deployed("False")
    deployment["status"]["conditions"].append(failed)
    found = status(service(), Observed(deployment, (), "http://h:1"), NOW)
    assert conditions(found)["Ready"] == ("False", "FailedCreate")


def test_a_failed_download_blocks_an_update_and_stays_as_the_last_failure() -> None:
    before = service()
    before["status"] = status(before, Observed(deployed(), (pod(),), "http://h:1"), NOW)
    ends = {"exitCode": 1, "message": "no model.json"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    crashing = {"name": "storage-initializer", "state": waiting, "lastState": {"terminated": ends}}
    pods = (pod("new", initContainerStatuses=[crashing]), pod("old"))
    found = status(before, Observed(deployed(reason="ReplicaSetUpdated"), pods, "http://h:1"), NOW)
    model = found["modelStatus"]
    assert model["transitionStatus"] == "BlockedByFailedLoad"
    assert model["lastFailureInfo"]["message"] == "no model.json"
    assert model["states"] == {"activeModelState": "Loaded", "targetModelState": "FailedToLoad"}
    before["status"] = found
    after = status(before, Observed(deployed(), pods, "http://h:1"), NOW)["modelStatus"]
    assert after["transitionStatus"] == "UpToDate"
    assert after["lastFailureInfo"] == model["lastFailureInfo"]


def test_a_new_pod_without_containers_leaves_the_models_state() -> None:
    before = service()
    before["status"] = status(before, Observed(deployed(), (pod(),), "http://h:1"), NOW)
    rolling = Observed(deployed(reason="NewReplicaSetCreated"), (pod("new"), pod()), "http://h:1")
    found = status(before, rolling, NOW)
    assert found["modelStatus"] == before["status"]["modelStatus"]


def test_a_refused_spec_leaves_every_condition_unknown() -> None:
    refusal = Refusal("NoSupportingRuntime", "No runtime found")
    found = refused(service(), refusal, "Standard", NOW)
    assert found["modelStatus"]["transitionStatus"] == "InvalidSpec"
    assert conditions(found) == {
        "IngressReady": ("Unknown", ""),
        "PredictorReady": ("Unknown", ""),
        "Ready": ("Unknown", ""),
    }
