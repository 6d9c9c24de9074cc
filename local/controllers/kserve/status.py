"""The status of an InferenceService, as a pure function.

Source: kserve v0.20, `pkg/apis/serving/v1beta1/inference_service_status`. The conditions, their
values and their order are as measured on v0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kserve import canary
from kfp_pytorch.local.controllers.kserve.predictor import CONTAINER
from kfp_pytorch.local.controllers.kserve.runtimes import Refusal
from kfp_pytorch.local.controllers.kserve.storage import INITIALIZER
from kfp_pytorch.local.controllers.kubernetes.status import condition, dated

MODE = "Standard"
_CONDITIONS = ("IngressReady", "PredictorReady", "Ready")


@dataclass(frozen=True)
class Observed:
    """What belongs to one InferenceService."""

    deployment: Object  # its Deployment; empty if there is none
    pods: tuple[Object, ...] = ()  # the newest first; terminating ones are included
    url: str = ""  # where it is reached
    runtime: str = ""  # the name of its runtime
    error: str = ""  # what the API refused to KServe, or an empty string
    canaries: Sequence[Object] = ()  # its `canaryStatuses`


def status(service: Object, observed: Observed, now: datetime) -> Object:
    """The status of an InferenceService. `now`: the time, in UTC."""
    before = service.get("status") or {}
    predictor = _predictor_ready(observed)
    ready = {"status": "True"} if predictor["status"] == "True" else predictor
    components = before.get("components") or {"predictor": {}}
    if condition(observed.deployment, "Available").get("status") == "True":
        components = {"predictor": {"url": observed.url}}
    canaries = list(observed.canaries)
    written: Object = {
        **{key: value for key, value in before.items() if key != "canaryStatuses"},
        **({"canaryStatuses": canaries} if canaries else {}),
        "url": observed.url,
        "address": {"url": observed.url},
        "conditions": [
            dated(each, condition(service, each["type"]), now)
            for each in (
                *([canary.ready_condition(canaries)] if canaries else []),
                {"type": "IngressReady", "status": "True"},
                {**predictor, "type": "PredictorReady"},
                {**ready, "type": "Ready"},
                {"type": "Stopped", "status": "False", "severity": "Info"},
            )
        ],
        "deploymentMode": MODE,
        "components": components,
        "modelStatus": model_status(
            before.get("modelStatus") or {}, observed.pods, ready["status"]
        ),
        "servingRuntimeName": observed.runtime,
    }
    generation = (observed.deployment.get("status") or {}).get("observedGeneration")
    return written | ({"observedGeneration": generation} if generation else {})


def refused(service: Object, refusal: Refusal, mode: str, now: datetime) -> Object:
    """The status of an InferenceService whose spec KServe cannot serve. `now`: the time, in UTC."""
    before = service.get("status") or {}
    model = before.get("modelStatus") or {}
    states = model.get("states") or {"activeModelState": ""}
    unknown = [{"type": type_, "status": "Unknown"} for type_ in _CONDITIONS]
    return {
        **before,
        "conditions": before.get("conditions") or [dated(each, {}, now) for each in unknown],
        "deploymentMode": mode,
        "modelStatus": {
            **model,
            "lastFailureInfo": {"reason": refusal.reason, "message": refusal.message},
            "states": {**states, "targetModelState": "FailedToLoad"},
            "transitionStatus": "InvalidSpec",
        },
    }


def _predictor_ready(observed: Observed) -> Object:
    if observed.error:
        return {"status": "False", "reason": "ReconcileFailed", "message": observed.error}
    failure, available, progressing = (
        condition(observed.deployment, type_)
        for type_ in ("ReplicaFailure", "Available", "Progressing")
    )
    if failure:
        return _from(failure, "False")
    if available.get("status") != "True":
        return _from(available, "False")
    if progressing["reason"] == "NewReplicaSetAvailable":
        return _from(progressing, "True")
    # During a rollout it is Unknown, and False when the rollout has timed out.
    return _from(progressing, "Unknown" if progressing["status"] == "True" else "False")


def _from(found: Object, value: str) -> Object:
    return {"status": value, **{key: found[key] for key in ("reason", "message") if key in found}}


def model_status(before: Object, pods: tuple[Object, ...], ready: str) -> Object:
    """`modelStatus`: what the newest pod's containers report of the model.

    `before`: what it was; `pods`: the newest first; `ready`: the status of the condition Ready.
    """
    states = before.get("states") or {"activeModelState": "", "targetModelState": "Pending"}
    state, failure = _model_state(pods, ready)
    state = state or states["targetModelState"]
    transition = {"Loaded": "UpToDate", "FailedToLoad": "BlockedByFailedLoad"}.get(
        state, "InProgress"
    )
    copies = before.get("copies") or {"failedCopies": 0}
    if state == "Loaded" and ready == "True":
        states = {**states, "activeModelState": "Loaded"}
        copies = {"failedCopies": 0, "totalCopies": len(pods)}
    return {
        **before,
        "copies": copies,
        "states": {**states, "targetModelState": state},
        "transitionStatus": transition,
        **({"lastFailureInfo": failure} if failure else {}),
    }


def _model_state(pods: tuple[Object, ...], ready: str) -> tuple[str, Object | None]:
    """The model's state, or an empty string for no change, and its failure."""
    if not pods:
        return "Pending", None
    if ready == "True":
        return "Loaded", None
    pod = pods[0].get("status") or {}
    initializer = _state(pod.get("initContainerStatuses"), INITIALIZER)
    failure = _failure(initializer)
    if failure:
        return "FailedToLoad", failure
    if "running" in initializer:
        return "Loading", None
    serving = _state(pod.get("containerStatuses"), CONTAINER)
    failure = _failure(serving)
    if failure:
        return "FailedToLoad", failure
    return ("Pending" if serving else ""), None


def _state(statuses: list[Object] | None, name: str) -> Object:
    """A container's state, with its last end where it waits or loads again after a failure."""
    found = next((each for each in statuses or [] if each["name"] == name), {})
    state: Object = found.get("state") or {}
    loads_again = "running" in state and name == INITIALIZER
    if loads_again or (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff":
        return {**state, **(found.get("lastState") or {})}
    return state


def _failure(state: Object) -> Object | None:
    ended = state.get("terminated") or {}
    if not ended.get("exitCode"):
        return None
    failure = {"reason": "ModelLoadFailed", "message": ended.get("message", "")}
    return {**failure, "exitCode": ended["exitCode"]}
