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
from kfp_pytorch.launcher.inputs import model, placement, storage
from kfp_pytorch.launcher.kserve.deploy_inputs import (
    MODE_ANNOTATION,
    PREFIX,
    DeployInputs,
    parse_deploy_inputs,
)
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

POD_LABEL = f"{PREFIX}/inferenceservice"
HASH = constants.SPEC_HASH_LABEL
HOST_LIMIT = 63


@dataclass(frozen=True, kw_only=True)
class ServiceInputs(DeployInputs):
    """The checked inputs, and what else an InferenceService of ours is made of."""

    predictor: Mapping[str, Any]  # its `spec.predictor`, with the spec's hash in the annotations
    spec_hash: str  # the hash of all that makes a revision
    made_in: str  # the namespace of the job that made the model; empty where that is not known

    def title(self, namespace: str) -> str:
        """Name the service with its kind."""
        return f"InferenceService {namespace}/{self.service_name}"


def parse_inputs(model_uri: str, metadata: Mapping[str, Any], **inputs: Any) -> ServiceInputs:
    """Check the inputs of `kserve_deploy`.

    `metadata`: the model's; `storage_uri` takes precedence over the URI, `format` names the
    model format. Raises InputError: one cannot work, or nothing was exported.
    """
    given = parse_deploy_inputs(**inputs)
    predictor = _predictor(given, model_uri, metadata)
    mode = {MODE_ANNOTATION: given.deployment_mode} if given.deployment_mode else {}
    annotations = given.annotations | mode
    # New weights may lie where the old ones did: their hash makes a revision of its own.
    whole = [predictor, given.labels, annotations, metadata.get("sha256", "")]
    spec_hash = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    predictor.setdefault("annotations", {})[HASH] = spec_hash
    if given.canary_traffic_percent >= 0:  # after the hash: to shift traffic makes no new revision
        predictor["canaryTrafficPercent"] = given.canary_traffic_percent
    made_in = str(metadata.get("namespace") or "")
    checked = vars(given) | {"annotations": annotations}
    return ServiceInputs(**checked, predictor=predictor, spec_hash=spec_hash, made_in=made_in)


def check_host(name: str, namespace: str) -> None:
    """Refuse a name whose host KServe could never make, though the API server takes it."""
    host = f"{name}-predictor-{namespace}"
    if len(host) > HOST_LIMIT:
        room = HOST_LIMIT - len(f"-predictor-{namespace}")
        raise InputError(
            f"service_name {name!r} is too long: KServe's host {host!r} has {len(host)} characters "
            f"({len(name)} + {len('-predictor-')} + {len(namespace)}), and a part of a host's name "
            f"has at most {HOST_LIMIT}. In namespace {namespace!r} a service's name may have "
            f"{max(room, 0)}."
        )


def claim_warning(inputs: ServiceInputs, namespace: str) -> str:
    """Warn that a claim may be another than the one that was written to; or an empty string."""
    uri = str(inputs.predictor["model"]["storageUri"])
    if not uri.startswith("pvc://") or inputs.made_in in ("", namespace):
        return ""
    return (
        f"The model was written to {uri!r} in namespace {inputs.made_in!r}, and is served from the "
        f"claim of that name in namespace {namespace!r}: they must be the same volume."
    )


def _predictor(given: DeployInputs, model_uri: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        "model": _model(given, model_uri, metadata),
        "serviceAccountName": given.service_account,
        "maxReplicas": given.max_replicas,
        "timeout": given.request_timeout,
        "nodeSelector": given.node_selector,
        "tolerations": list(given.tolerations),
    }
    return {"minReplicas": given.min_replicas} | {k: value for k, value in fields.items() if value}


def _model(given: DeployInputs, model_uri: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    uri = storage.kserve_uri(model.place(model_uri, metadata, "deploy"))
    model_format = _format(given, str(metadata.get("format") or ""))
    amounts = {"cpu": given.cpu, "memory": given.memory}
    key = given.storage_key
    fields = {
        "runtime": given.runtime,
        # KServe reads the credentials of a key only where there are parameters too.
        "storage": key and {"key": key, "parameters": {"type": uri.partition("://")[0]}},
        # The server's name for the model is the URL's, whatever the runtime's own default is.
        "args": [f"--model_name={given.service_name}"]
        if model_format == constants.MODEL_FORMAT
        else [],
        "env": [_no_template(variable) for variable in given.env],
        "resources": placement.resources({}, amounts, given.gpu_resource, given.gpus),
    }
    return {
        "modelFormat": {"name": model_format},
        "protocolVersion": given.protocol,
        "storageUri": uri,
    } | {field: value for field, value in fields.items() if value}


def _no_template(variable: Mapping[str, Any]) -> dict[str, Any]:
    """Write a variable so that its value passes KServe, which takes a container for a template.

    It parses the container's JSON with Go's text/template (pkg/controller/v1beta1/inferenceservice/
    utils, ReplacePlaceholders); a raw string in an action stands for itself.
    """
    if "value" not in variable:
        return dict(variable)
    return {**variable, "value": variable["value"].replace("{{", "{{`{{`}}")}


def _format(given: DeployInputs, known: str) -> str:
    wanted = given.model_format or known or constants.MODEL_FORMAT
    if known and known != wanted:
        raise InputError(
            f"model_format is {wanted!r}, but the model's own metadata says {known!r}. Leave "
            "model_format empty to serve it as what it is."
        )
    if wanted == "pytorch" and not given.runtime:
        raise InputError(
            "model_format 'pytorch' makes KServe take TorchServe, which serves only a .mar file in "
            "model-store/ with config/config.properties, not a checkpoint. If the model has that "
            "layout, name the runtime: runtime='kserve-torchserve'. A model that pytorch_job "
            f"exported has the format {constants.MODEL_FORMAT!r}."
        )
    return wanted


def manifest(inputs: ServiceInputs, existing: Object | None) -> Object:
    """Build the InferenceService.

    `existing`: the service as it is, or None. Labels, annotations and components that are not ours
    are kept. Returns the object, with the existing one's resourceVersion.
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
    predictor = copy.deepcopy(dict(inputs.predictor))
    before = dig(service, "spec", "predictor") or {}
    for field in ("labels", "annotations"):
        kept = {**(before.get(field) or {}), **predictor.get(field, {})}
        if kept:
            predictor[field] = kept
    service["spec"] = {**(service.get("spec") or {}), "predictor": predictor}
    service.pop("status", None)
    return service
