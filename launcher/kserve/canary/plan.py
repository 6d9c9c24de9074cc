"""What a deployment makes of an InferenceService: a revision for everybody, or a canary. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.canary import spec, state
from kfp_pytorch.launcher.kserve.deploy_inputs import no_raw_canary
from kfp_pytorch.launcher.kserve.manifest import ServiceInputs, manifest
from kfp_pytorch.launcher.kserve.names import MODE_ANNOTATION
from kfp_pytorch.launcher.kubernetes.objects import Object, dig


@dataclass(frozen=True)
class Plan:
    """What is to be written.

    Attributes:
        service: The InferenceService.
        is_canary: Whether the revision is beside one that serves.
        note: What a person would not expect of it; or empty.
    """

    service: Object
    is_canary: bool = False
    note: str = ""


def plan(inputs: ServiceInputs, existing: Object | None, mode: str) -> Plan:
    """Plan a deployment.

    `existing`: the service as it is, or None. `mode`: in which it runs, `Standard` or `Knative`.
    Raises InputError: a canary cannot be made so.
    """
    made = spec.removed(manifest(inputs, existing))
    if inputs.canary_traffic_percent < 0:
        return Plan(made)
    if not existing or not state.has_served(existing):
        made["spec"]["predictor"].pop("canaryTrafficPercent", None)
        return Plan(made, note="no revision of it serves yet: this one gets all of the traffic")
    if mode == "Standard" and inputs.canary_traffic_percent:
        because = f"service {inputs.service_name!r} is in Standard mode"
        raise InputError(no_raw_canary(inputs.canary_traffic_percent, because))
    is_newest = spec.revision_of(dig(existing, "spec", "predictor")) == inputs.spec_hash
    if is_newest and not state.is_split(existing):
        # In Knative mode KServe would take a smaller share for a rollback to the revision before.
        return Plan(existing, note="this revision gets all of the traffic already: it is no canary")
    if mode == "Standard":
        beside = _beside(inputs, existing, made)
        return Plan(beside, is_canary=True, note=_inherited(beside))
    annotations = made["spec"]["predictor"].setdefault("annotations", {})
    annotations[spec.TAG_ANNOTATION] = "true"
    return Plan(made, is_canary=True)


def _inherited(service: Object) -> str:
    """Say what the canary has and did not ask for; empty where it is nothing."""
    fields = ", ".join(spec.inherited(service))
    return fields and (
        f"KServe fills in what the canary leaves out of the stable predictor ({fields}): it is "
        "tested with that, and promoted without"
    )


def _beside(inputs: ServiceInputs, existing: Object, made: Object) -> Object:
    """Return the existing service with a canary, which has what is the whole service's otherwise.

    Labels and annotations of the service itself would reach the stable predictor's pods too.
    """
    if dig(made, "spec", "transformer") or dig(existing, "spec", "transformer"):
        raise InputError(
            f"service {inputs.service_name!r} has a transformer, and KServe's canary in Standard "
            "mode is a predictor alone, without it. Leave canary_traffic_percent at -1, or use a "
            "service in Knative mode."
        )
    predictor = made["spec"]["predictor"]
    annotations = {k: v for k, v in inputs.annotations.items() if k != MODE_ANNOTATION}
    for field, given in (("labels", inputs.labels), ("annotations", annotations)):
        if given:
            predictor[field] = {**given, **(predictor.get(field) or {})}
    predictor["annotations"].pop(spec.TAG_ANNOTATION, None)
    return spec.added(existing, predictor)
