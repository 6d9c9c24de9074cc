"""Which ServingRuntime serves a model.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice/utils`.
"""

from __future__ import annotations

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object


class Refusal(Exception):
    """KServe cannot serve the spec: the reason and message of its failure info, its event."""

    def __init__(self, reason: str, message: str, event: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.event = event or message


class NotHere(Refusal):
    """The model server cannot run on this machine, where KServe would run its image."""

    def __init__(self, message: str) -> None:
        super().__init__("InvalidPredictorSpec", message)


def select_runtime(service: Object, runtimes: list[Object]) -> Object:
    """Choose the runtime that serves a model, the first of several. Raises Refusal.

    A predictor with a container of its own gets one that adds nothing.
    """
    predictor = service["spec"]["predictor"]
    model = predictor.get("model")
    if not model and predictor.get("containers"):
        return {"metadata": {}, "spec": {}}
    if not model:
        raise Refusal(
            "InvalidPredictorSpec",
            "the local cluster knows predictors with a model or a container only",
        )
    if model.get("runtime"):
        return _named_runtime(model, runtimes)
    for runtime in runtimes:
        if not runtime["spec"].get("disabled") and _supports(runtime, model, auto=True):
            return runtime
    raise Refusal(
        "NoSupportingRuntime",
        "No runtime found to support specified framework/version",
        "no runtime found to support predictor with model type: "
        f"{{{model['modelFormat']['name']} <nil>}}",
    )


def _named_runtime(model: Object, runtimes: list[Object]) -> Object:
    found = next((r for r in runtimes if objects.name(r) == model["runtime"]), None)
    if found is None:
        raise Refusal(
            "RuntimeNotRecognized",
            "Waiting for runtime to become available",
            f"No ServingRuntimes or ClusterServingRuntimes with the name: {model['runtime']}",
        )
    if found["spec"].get("disabled"):
        raise Refusal("RuntimeDisabled", "Specified runtime is disabled")
    if model.get("protocolVersion", "v1") not in found["spec"].get("protocolVersions", ["v1"]):
        raise Refusal(
            "NoSupportingRuntime", "Specified runtime does not support specified protocol version"
        )
    if not _supports(found, model, auto=False):
        raise Refusal(
            "NoSupportingRuntime", "Specified runtime does not support specified framework/version"
        )
    return found


def _supports(runtime: Object, model: Object, *, auto: bool) -> bool:
    spec, wanted = runtime["spec"], model["modelFormat"]
    if model.get("protocolVersion", "v1") not in spec.get("protocolVersions", ["v1"]):
        return False
    return any(
        known["name"] == wanted["name"]
        and (not wanted.get("version") or wanted["version"] == known.get("version"))
        and (known.get("autoSelect", False) or not auto)
        for known in spec.get("supportedModelFormats") or []
    )
