"""From a model and the inputs of `kserve_deploy` to an InferenceService. No I/O.

KServe's side: https://github.com/kserve/kserve/tree/v0.20.0/pkg/apis/serving/v1beta1
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import strategic_merge
from kfp_pytorch.launcher.kserve import names
from kfp_pytorch.launcher.kserve.deploy_inputs import DeployInputs, parse_deploy_inputs
from kfp_pytorch.launcher.kserve.names import AUTOSCALER_ANNOTATION, MODE_ANNOTATION
from kfp_pytorch.launcher.kserve.spec import containers, scaling
from kfp_pytorch.launcher.kserve.spec.model import Source, source
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

HASH = constants.SPEC_HASH_LABEL
HOST_LIMIT = 63


@dataclass(frozen=True, kw_only=True)
class ServiceInputs(DeployInputs):
    """The checked inputs, and what else an InferenceService of ours is made of."""

    predictor: Mapping[str, Any]  # its `spec.predictor`, with the spec's hash in the annotations
    own_transformer: Mapping[str, Any]  # its `spec.transformer`, with the hash; empty for none
    spec_hash: str  # the hash of all that makes a revision
    source: Source  # what is served
    made_in: str  # the namespace of the job that made the model; empty where that is not known

    def title(self, namespace: str) -> str:
        """Name the service with its kind."""
        return names.title(namespace, self.service_name)


def parse_inputs(
    model_uri: str | None, metadata: Mapping[str, Any], **inputs: Any
) -> ServiceInputs:
    """Check the inputs of `kserve_deploy`.

    `model_uri`: the model's URI; None where `storage_uri` is given in its place. `metadata`: the
    model's; `storage_uri` takes precedence over the URI, `format` names the model format. Raises
    InputError: one cannot work, or nothing was exported.
    """
    given = parse_deploy_inputs(**inputs)
    scaling.check(given)
    served = source(given, model_uri, metadata)
    predictor, transformer = _predictor(given, served), containers.transformer(given, served)
    _check_batcher(given, served)
    set_by_inputs = {
        MODE_ANNOTATION: given.deployment_mode,
        AUTOSCALER_ANNOTATION: given.autoscaler,
    }
    annotations = given.annotations | {k: value for k, value in set_by_inputs.items() if value}
    # New weights may lie where the old ones did: their hash makes a revision of its own.
    whole = [predictor, given.labels, annotations, metadata.get("sha256", "")]
    whole += [part for part in (transformer, given.service_patch) if part]
    spec_hash = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    for component in filter(None, (predictor, transformer)):
        component.setdefault("annotations", {})[HASH] = spec_hash
    if given.canary_traffic_percent >= 0:  # after the hash: to shift traffic makes no new revision
        predictor["canaryTrafficPercent"] = given.canary_traffic_percent
    checked = vars(given) | {"annotations": annotations}
    return ServiceInputs(
        **checked,
        predictor=predictor,
        own_transformer=transformer,
        spec_hash=spec_hash,
        source=served,
        made_in=str(metadata.get("namespace") or ""),
    )


def _check_batcher(given: DeployInputs, served: Source) -> None:
    if given.batcher and served.protocol != "v1":
        raise InputError(
            f"batcher is given, and the protocol is {served.protocol}: KServe's batcher knows "
            "requests of v1 only. Leave batcher out."
        )


def components(inputs: ServiceInputs) -> tuple[str, ...]:
    """Return the components of the service that are made of the inputs."""
    return ("predictor", "transformer") if inputs.own_transformer else ("predictor",)


def check_host(name: str, namespace: str, component: str = "predictor") -> None:
    """Refuse a name whose host KServe could never make, though the API server takes it."""
    host = f"{name}-{component}-{namespace}"
    if len(host) > HOST_LIMIT:
        added = f"-{component}-"
        room = HOST_LIMIT - len(added) - len(namespace)
        raise InputError(
            f"service_name {name!r} is too long: KServe's host {host!r} has {len(host)} characters "
            f"({len(name)} + {len(added)} + {len(namespace)}), and a part of a host's name "
            f"has at most {HOST_LIMIT}. In namespace {namespace!r} a service's name may have "
            f"{max(room, 0)}."
        )


def claim_warning(inputs: ServiceInputs, namespace: str) -> str:
    """Warn that a claim may be another than the one that was written to; or an empty string."""
    uri = inputs.source.uri
    if not uri.startswith("pvc://") or inputs.made_in in ("", namespace):
        return ""
    return (
        f"The model was written to {uri!r} in namespace {inputs.made_in!r}, and is served from the "
        f"claim of that name in namespace {namespace!r}: they must be the same volume."
    )


def _predictor(given: DeployInputs, served: Source) -> dict[str, Any]:
    fields = {
        **containers.server(given, served),
        "serviceAccountName": given.service_account,
        "maxReplicas": given.max_replicas,
        **scaling.fields(given),
        "timeout": given.request_timeout,
        "batcher": dict(given.batcher),
        "volumes": [dict(volume) for volume in given.volumes],
        "nodeSelector": given.node_selector,
        "tolerations": list(given.tolerations),
        "affinity": given.affinity,
    }
    return {"minReplicas": given.min_replicas} | {k: value for k, value in fields.items() if value}


def manifest(inputs: ServiceInputs, existing: Object | None) -> Object:
    """Build the InferenceService.

    `existing`: the service as it is, or None. Labels, annotations and components that are not ours
    are kept. Returns the object, with the existing one's resourceVersion. Raises InputError:
    `service_patch` does not fit what it is to change.
    """
    service = copy.deepcopy(existing) if existing else {"metadata": {}, "spec": {}}
    service |= {
        "apiVersion": constants.INFERENCE_SERVICE.api_version,
        "kind": constants.INFERENCE_SERVICE.kind,
    }
    metadata = service["metadata"]
    metadata["name"] = inputs.service_name
    if inputs.namespace:
        metadata["namespace"] = inputs.namespace
    # What manages the service already, such as Helm, continues to do so.
    managed = {constants.MANAGED_BY_LABEL: constants.PREFIX}
    metadata["labels"] = managed | (metadata.get("labels") or {}) | inputs.labels
    if inputs.annotations:
        metadata["annotations"] = (metadata.get("annotations") or {}) | inputs.annotations
    spec = dict(service.get("spec") or {})
    spec["predictor"] = _component(inputs.predictor, spec.get("predictor"))
    before = spec.get("transformer")
    if inputs.own_transformer:
        spec["transformer"] = _component(inputs.own_transformer, before)
    elif HASH in (dig(before, "annotations") or {}):
        # An earlier deployment's, which this one does without.
        del spec["transformer"]
    service["spec"] = spec
    service.pop("status", None)
    return strategic_merge.merge(service, inputs.service_patch, "service_patch")


def _component(wanted: Mapping[str, Any], before: Object | None) -> Object:
    """Return a component with the labels and annotations that others gave it."""
    made = copy.deepcopy(dict(wanted))
    for field in ("labels", "annotations"):
        kept = {**(dig(before, field) or {}), **made.get(field, {})}
        if kept:
            made[field] = kept
    return made
