"""The canaries of an InferenceService in Standard mode: `spec.canary`. No I/O.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice/components/predictor.go` and
`pkg/apis/serving/v1beta1/inference_service_validation.go`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
# A canary has a fixed number of replicas.
_NOT_ITS_OWN = ("maxReplicas", "scaleTarget", "scaleMetric", "autoScaling")


def canaries(service: Object) -> list[Object]:
    """Each canary as a service of its own, whose predictor is the canary's.

    What a canary leaves out is the stable predictor's.
    """
    found = []
    for entry in service["spec"].get("canary") or []:
        each = objects.copy(service)
        merged = _merged(each["spec"]["predictor"], entry["predictor"])
        own = {key: value for key, value in merged.items() if key not in _NOT_ITS_OWN}
        each["spec"] = {**each["spec"], "predictor": {**own, "minReplicas": _count(service, entry)}}
        found.append(each)
    return found


def stable(service: Object) -> Object:
    """A service without its canaries, whose replicas are taken from the stable ones."""
    alone = objects.copy(service)
    entries = alone["spec"].pop("canary", None) or []
    predictor = alone["spec"]["predictor"]
    if entries and predictor.get("minReplicas") is not None:
        taken = sum(_count(service, entry) for entry in entries)
        predictor["minReplicas"] = max(1, predictor["minReplicas"] - taken)
    return alone


def statuses(service: Object, available: Mapping[str, bool]) -> list[Object]:
    """`canaryStatuses`. `available`: by a canary's name, whether it has an available pod."""
    return [
        {
            "name": entry["predictor"]["name"],
            "ready": available.get(entry["predictor"]["name"], False),
            "trafficPercent": entry["trafficPercent"],
        }
        for entry in service["spec"].get("canary") or []
    ]


def ready_condition(found: list[Object]) -> Object:
    """The condition of the canaries together, from `canaryStatuses`."""
    ready = all(each["ready"] for each in found)
    reason = "AllCanariesReady" if ready else "CanariesNotReady"
    condition = {"type": "CanaryPredictorReady", "status": str(ready), "reason": reason}
    return {**condition, "severity": "Info"}


def refusal(service: Object, mode: str) -> str:
    """Why KServe's webhook refuses the canaries, or an empty string. `mode`: as it is written."""
    entries = service["spec"].get("canary") or []
    if not entries:
        return ""
    if mode != "Standard":
        return "canary is only supported in Standard deployment mode"
    stable_predictor = service["spec"].get("predictor") or {}
    if not stable_predictor.get("model"):
        return (
            "canary requires a stable predictor with a model (multi-model serving is not supported "
            "with canary)"
        )
    names = [(entry.get("predictor") or {}).get("name", "") for entry in entries]
    for at, (name, entry) in enumerate(zip(names, entries, strict=True)):
        if not _NAME.fullmatch(name):
            return f"canary[{at}] predictor.name is required"
        if name in names[:at]:
            return f'canary predictor.name "{name}" is duplicated'
        if name == stable_predictor.get("name", ""):
            return f'canary predictor.name "{name}" conflicts with stable predictor name'
        if why := _predictor_refusal(entry["predictor"], stable_predictor):
            return f'canary "{name}" {why}'
    total = sum(entry["trafficPercent"] for entry in entries)
    return f"sum of canary trafficPercent values ({total}) must be <= 100" if total > 100 else ""


def _predictor_refusal(predictor: Object, of_stable: Object) -> str:
    for field in _NOT_ITS_OWN:
        if predictor.get(field):
            return f"must not set {field} (canary uses fixed replicas)"
    least, most = predictor.get("minReplicas"), of_stable.get("minReplicas", 1)
    if least is not None and least > most:
        return f"minReplicas ({least}) must not exceed stable predictor minReplicas ({most})"
    return ""


def _count(service: Object, entry: Object) -> int:
    """A canary's replicas; 0 for its autoscaler's least number, which is 1."""
    least = entry["predictor"].get("minReplicas")
    if least is not None:
        return int(least)
    of_stable = int(service["spec"]["predictor"].get("minReplicas", 1))
    return math.ceil(of_stable * int(entry["trafficPercent"]) / 100)


def _merged(below: Any, above: Any) -> Any:
    """One value over another, as mergo does: an empty one leaves what is below it."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: _merged(below.get(key), value) for key, value in above.items()}}
    return above or below
