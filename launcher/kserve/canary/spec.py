"""The canary in the spec of an InferenceService: made, moved to the stable predictor, removed.

KServe's side: https://github.com/kserve/kserve/tree/v0.20.0/pkg/apis/serving/v1beta1
(`inference_service.go`, `inference_service_validation.go`) and
https://github.com/kserve/kserve/tree/v0.20.0/pkg/controller/v1beta1/inferenceservice/components
(`predictor.go`). No I/O.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from kfp_pytorch.launcher.constants import PREFIX, SPEC_HASH_LABEL
from kfp_pytorch.launcher.kserve.names import AUTOSCALER_ANNOTATION, MODE_ANNOTATION
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each

# The canary of this project in `spec.canary`. KServe leaves a canary's autoscaler behind, so that a
# name for each revision would leave one for each.
NAME = "canary"
# Has Knative give the newest revision, which KServe tags `latest`, an address of its own.
TAG_ANNOTATION = "serving.kserve.io/enable-tag-routing"
# What a canary may not have until it is promoted, as JSON.
_SCALE_ANNOTATION = f"{PREFIX}/scale-when-promoted"
_SCALE = (
    *("minReplicas", "maxReplicas"),
    *("scaleMetric", "scaleMetricType", "scaleTarget", "autoScaling"),
)
# Without it KServe replaces a quarter of the pods before their successors are ready.
_KEEP_ALL = {
    "type": "RollingUpdate",
    "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "25%"},
}


def deployment_name(service_name: str) -> str:
    """Return the name of the canary's Deployment and Service."""
    return f"{service_name}-{NAME}-predictor"


def revision_of(predictor: object) -> str:
    """Return the hash of what a predictor serves; empty where this project did not make it."""
    return str(dig(predictor, "annotations", SPEC_HASH_LABEL) or "")


def find(service: object) -> Object | None:
    """Return the canary's entry in `spec.canary`, or None."""
    entries = each(service, "spec", NAME)
    return next((entry for entry in entries if dig(entry, "predictor", "name") == NAME), None)


def added(service: Object, predictor: Object) -> Object:
    """Return a service with a canary that gets no traffic.

    `predictor`: the canary's, as it would be as `spec.predictor`.
    """
    own = copy.deepcopy(predictor)
    scale = {field: own.pop(field) for field in _SCALE if field in own}
    own.pop("canaryTrafficPercent", None)
    if "model" in own:
        # KServe's schema demands it of a canary alone; empty it is the runtime's.
        own["model"]["name"] = ""
    annotations = own.setdefault("annotations", {})
    if scale:
        annotations[_SCALE_ANNOTATION] = json.dumps(scale, sort_keys=True)
    scaler = annotations.get(AUTOSCALER_ANNOTATION) or dig(
        service, "metadata", "annotations", AUTOSCALER_ANNOTATION
    )
    if scaler not in (None, "hpa", "external"):
        # Of 0 % of the stable replicas, which are none, only an HPA makes one.
        own["minReplicas"] = 1
    changed = _with_entry(service, {"predictor": {"name": NAME, **own}, "trafficPercent": 0})
    metadata = changed["metadata"]
    # KServe's webhook reads the mode here alone, and takes the new name only.
    metadata["annotations"] = {**(metadata.get("annotations") or {}), MODE_ANNOTATION: "Standard"}
    return changed


def promoted(service: Object) -> Object:
    """Return a service whose stable predictor is the canary's; the canary stays.

    KServe's own way is to name the canary in `spec.predictor.name`. It deletes the pods of the
    stable predictor at once, while the canary has but its own, and the service's address within the
    cluster changes with the name. So the stable predictor keeps its name, and no pod of it ends
    before its successor is ready.
    """
    changed = copy.deepcopy(service)
    entry = find(service) or {}
    stable, own = changed["spec"]["predictor"], copy.deepcopy(entry["predictor"])
    annotations = own.get("annotations") or {}
    scale = json.loads(annotations.pop(_SCALE_ANNOTATION, "{}"))
    for field in ("name", "minReplicas"):
        own.pop(field, None)
    if "model" in own:
        own["model"].pop("name", None)
    kept = {"name": stable["name"]} if stable.get("name") else {}
    changed["spec"]["predictor"] = {"deploymentStrategy": _KEEP_ALL} | own | scale | kept
    return changed


def removed(service: Object) -> Object:
    """Return a service without the canary."""
    return _with_entry(service, None)


def inherited(service: Object) -> list[str]:
    """Return what the canary leaves out, and KServe takes from the stable predictor: paths."""
    canary = dict((find(service) or {}).get("predictor") or {})
    stable = {k: v for k, v in service["spec"]["predictor"].items() if k not in _SCALE}
    own = (SPEC_HASH_LABEL, TAG_ANNOTATION)
    missing = _missing(stable, canary)
    return [path for path in missing if not path.endswith(own) and path != "deploymentStrategy"]


def _missing(below: object, above: object, path: str = "") -> Iterator[str]:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return
    for key, value in below.items():
        if value and not above.get(key):
            yield f"{path}{key}"
        else:
            yield from _missing(value, above.get(key), f"{path}{key}.")


def _with_entry(service: Object, entry: Object | None) -> Object:
    """Return a service with this entry in place of the canary's; None for none."""
    changed = copy.deepcopy(service)
    others = [e for e in each(changed, "spec", NAME) if dig(e, "predictor", "name") != NAME]
    entries: list[Any] = [*others, *([entry] if entry else [])]
    if entries:
        changed["spec"][NAME] = entries
    else:
        changed["spec"].pop(NAME, None)
    return changed
