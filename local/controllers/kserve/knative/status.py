"""The status of an InferenceService in Knative mode, as a pure function.

Source: kserve v0.20, `pkg/apis/serving/v1beta1/inference_service_status.go`; knative serving v1.15,
`pkg/apis/serving/v1/{configuration,service}_lifecycle.go`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kserve.status import model_status
from kfp_pytorch.local.controllers.kubernetes.status import condition, dated

MODE = "Knative"
# Those that count for Ready; of the others KServe says that they inform only.
_DEPENDENT = ("IngressReady", "PredictorReady", "Ready")


@dataclass(frozen=True)
class Observed:
    """What belongs to one InferenceService."""

    component: Object  # the predictor's status, see `traffic`
    newest: Object  # its newest Revision; empty if there is none
    pods: tuple[Object, ...]  # of that Revision, the newest first
    url: str  # where the service is reached
    runtime: str = ""  # the name of its runtime
    error: str = ""  # what the API refused to KServe, or an empty string


def status(service: Object, observed: Observed, now: datetime) -> Object:
    """The status of an InferenceService. `now`: the time, in UTC."""
    before = service.get("status") or {}
    component = observed.component
    configuration = _configuration_ready(observed)
    routes = {"status": "True"} if component.get("traffic") else _unknown("RevisionMissing")
    predictor = next(
        (each for each in (configuration, routes) if each["status"] != "True"), {"status": "True"}
    )
    if observed.error:
        reason = {"reason": "ReconcileFailed", "message": observed.error}
        predictor = {"status": "False", **reason}
    values = {
        "IngressReady": routes,
        "LatestDeploymentReady": configuration,
        "PredictorConfigurationReady": configuration,
        "PredictorReady": predictor,
        "PredictorRouteReady": routes,
        "Ready": predictor,
        "RoutesReady": routes,
        "Stopped": {"status": "False"},
    }
    informing = {"severity": "Info"}
    conditions = [
        dated(
            {"type": type_, **value, **({} if type_ in _DEPENDENT else informing)},
            condition(service, type_),
            now,
        )
        for type_, value in values.items()
    ]
    found: Object = {
        **before,
        "conditions": conditions,
        "deploymentMode": MODE,
        "components": {"predictor": component},
        "modelStatus": model_status(
            before.get("modelStatus") or {}, observed.pods, predictor["status"]
        ),
        "servingRuntimeName": observed.runtime,
        "observedGeneration": objects.metadata(service).get("generation", 1),
    }
    if routes["status"] == "True":
        address = {"address": {"url": observed.url}, "url": observed.url}
        found["components"]["predictor"] = {**component, **address}
        found |= address
    return found


def _configuration_ready(observed: Observed) -> Object:
    name = objects.name(observed.newest) if observed.newest else ""
    if not name:
        return _unknown("")
    if name == observed.component.get("latestReadyRevision"):
        return {"status": "True"}
    ready = condition(observed.newest, "Ready")
    if ready.get("status") == "False":
        message = f'Revision "{name}" failed with message: {ready.get("message")}.'
        return {"status": "False", "reason": "RevisionFailed", "message": message}
    return _unknown("")


def _unknown(reason: str) -> Object:
    return {"status": "Unknown", **({"reason": reason} if reason else {})}
