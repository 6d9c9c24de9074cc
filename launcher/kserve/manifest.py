"""From a model and the inputs of `kserve_deploy` to an InferenceService. No I/O.

KServe's side: https://github.com/kserve/kserve/tree/v0.20.0/pkg/apis/serving/v1beta1
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, placement, readers, storage
from kfp_pytorch.launcher.kubernetes.objects import Object, dig

PREFIX = "serving.kserve.io"
MODE_ANNOTATION = f"{PREFIX}/deploymentMode"
STOP_ANNOTATION = f"{PREFIX}/stop"
POD_LABEL = f"{PREFIX}/inferenceservice"
HASH = constants.SPEC_HASH_LABEL
HOST_LIMIT = 63
# KServe 0.16 renamed its modes, and takes the old names too.
MODES = {"": "", "RawDeployment": "Standard", "Serverless": "Knative"}
MODES |= {"Standard": "Standard", "Knative": "Knative"}
PROTOCOLS = ("v1", "v2")


@dataclass(frozen=True)
class ServiceInputs:
    """Everything that an InferenceService of ours is made of, checked.

    Attributes:
        name: The service's name, which is also the model's name in its URL.
        namespace: Its namespace; empty for the step's own.
        protocol: `v1` or `v2`.
        predictor: Its `spec.predictor`, with the spec's hash in the annotations.
        labels: Its labels.
        annotations: Its annotations.
        canary: Whether only a part of the traffic goes to the new revision.
        spec_hash: The hash of all that makes a revision.
        timeout: Seconds until the new revision must serve.
        made_in: The namespace of the job that made the model; empty where that is not known.
    """

    name: str
    namespace: str
    protocol: str
    predictor: Mapping[str, Any]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    canary: bool
    spec_hash: str
    timeout: int
    made_in: str


def parse_inputs(model_uri: str, metadata: Mapping[str, Any], **inputs: Any) -> ServiceInputs:
    """Check the inputs of `kserve_deploy`.

    Args:
        model_uri: The URI of the Model artifact.
        metadata: Its metadata; `storage_uri` beats the URI, `format` names the model format.
        **inputs: The component's other inputs, as KFP hands them over.

    Returns:
        The service's parts.

    Raises:
        InputError: One cannot work; the message names it, its value, the limit and the way out.
    """
    mode = readers.choice("deployment_mode", inputs.get("deployment_mode"), tuple(MODES))
    canary = readers.integer(
        "canary_traffic_percent",
        inputs.get("canary_traffic_percent"),
        default=-1,
        minimum=-1,
        maximum=100,
    )
    if canary >= 0 and MODES[mode] == "Standard":
        raise InputError(no_raw_canary(canary, f"deployment_mode is {mode!r}"))
    name = service_name(inputs.get("service_name"))
    predictor = _predictor(name, model_uri, metadata, inputs)
    labels = readers.label_map("labels", inputs.get("labels"))
    annotations = _annotations(inputs.get("annotations"), mode)
    # New weights may lie where the old ones did: their hash makes a revision of its own.
    whole = [predictor, labels, annotations, metadata.get("sha256", "")]
    spec_hash = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    predictor.setdefault("annotations", {})[HASH] = spec_hash
    if canary >= 0:  # after the hash: to shift traffic makes no new revision
        predictor["canaryTrafficPercent"] = canary
    return ServiceInputs(
        name=name,
        namespace=readers.dns_label("namespace", inputs.get("namespace")),
        protocol=predictor["model"]["protocolVersion"],
        predictor=predictor,
        labels=labels,
        annotations=annotations,
        canary=canary >= 0,
        spec_hash=spec_hash,
        timeout=readers.integer("timeout", inputs.get("timeout"), default=900, minimum=1),
        made_in=str(metadata.get("namespace") or ""),
    )


def _annotations(value: Any, mode: str) -> dict[str, str]:
    annotations = readers.annotation_map("annotations", value)
    if MODE_ANNOTATION in annotations:
        raise InputError(f"annotations may not have {MODE_ANNOTATION!r}; use deployment_mode.")
    if annotations.get(STOP_ANNOTATION, "").lower() == "true":
        raise InputError(
            f"annotations[{STOP_ANNOTATION!r}] is 'true', so KServe would run nothing, and the "
            "step would wait in vain. Leave it out; stop the service once it has been deployed."
        )
    return annotations | ({MODE_ANNOTATION: mode} if mode else {})


def service_name(value: Any) -> str:
    """Make a service's name of what a person calls it.

    Raises:
        InputError: Nothing is left that a name may have, or KFP left a placeholder in it.
    """
    given = storage.filled_in(readers.text("service_name", value), "service_name")
    name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    if not name:
        raise InputError(
            f"service_name is {given!r}; it needs a letter or digit that a host's name may have "
            "(a-z, 0-9)."
        )
    return name if name[0].isalpha() else f"s-{name}"


def check_host(name: str, namespace: str) -> None:
    """Refuse a name whose host KServe could never make, though the API server takes it.

    Raises:
        InputError: With the arithmetic.
    """
    host = f"{name}-predictor-{namespace}"
    if len(host) > HOST_LIMIT:
        room = HOST_LIMIT - len(f"-predictor-{namespace}")
        raise InputError(
            f"service_name {name!r} is too long: KServe's host {host!r} has {len(host)} characters "
            f"({len(name)} + {len('-predictor-')} + {len(namespace)}), and a part of a host's name "
            f"has at most {HOST_LIMIT}. In namespace {namespace!r} a service's name may have "
            f"{max(room, 0)}."
        )


def no_raw_canary(percent: int, because: str) -> str:
    """Say why a canary is refused."""
    return (
        f"canary_traffic_percent is {percent}, but {because}, where KServe does not read it: the "
        "new revision would get all of the traffic. Leave it at -1, deploy under another "
        "service_name to try a model, or use a service in Knative mode."
    )


def doubtful_claim(inputs: ServiceInputs, namespace: str) -> str:
    """Say that a claim may be another than the one that was written to, or an empty string."""
    uri = str(inputs.predictor["model"]["storageUri"])
    if not uri.startswith("pvc://") or inputs.made_in in ("", namespace):
        return ""
    return (
        f"The model was written to {uri!r} in namespace {inputs.made_in!r}, and is served from the "
        f"claim of that name in namespace {namespace!r}: they must be the same volume."
    )


def _predictor(
    name: str, model_uri: str, metadata: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    replicas = readers.integer("min_replicas", inputs.get("min_replicas"), default=1)
    most = readers.integer("max_replicas", inputs.get("max_replicas"), default=0)
    if most and most < replicas:
        raise InputError(f"max_replicas is {most}, less than min_replicas, which is {replicas}.")
    fields = {
        "model": _model(name, model_uri, metadata, inputs),
        "serviceAccountName": readers.dns_subdomain(
            "service_account", inputs.get("service_account")
        ),
        "maxReplicas": most,
        "timeout": readers.integer("request_timeout", inputs.get("request_timeout"), default=0),
        "nodeSelector": placement.node_selector(inputs.get("node_selector"), {}),
        "tolerations": list(placement.tolerations(inputs.get("tolerations"), [])),
    }
    return {"minReplicas": replicas} | {key: value for key, value in fields.items() if value}


def _model(
    name: str, model_uri: str, metadata: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    uri = storage.kserve_uri(str(metadata.get("storage_uri") or model_uri))
    model_format, runtime = _format(metadata, inputs)
    resources, _ = placement.resources(
        {},
        {
            "cpu": readers.quantity("cpu", inputs.get("cpu"), minimum="1m"),
            "memory": readers.quantity("memory", inputs.get("memory"), minimum="1Mi"),
        },
        placement.gpu_resource(inputs.get("gpu_resource")),
        readers.integer("gpus", inputs.get("gpus"), default=0, maximum=4096),
    )
    key = readers.text("storage_key", inputs.get("storage_key"))
    env = [_no_template(variable) for variable in environment.merged(inputs.get("env"), ())]
    environment.check_size((), (), env)
    fields = {
        "runtime": runtime,
        # KServe reads the credentials of a key only where there are parameters too.
        "storage": key and {"key": key, "parameters": {"type": uri.partition("://")[0]}},
        # The server's name for the model is the URL's, whatever the runtime's own default is.
        "args": [f"--model_name={name}"] if model_format == constants.MODEL_FORMAT else [],
        "env": env,
        "resources": {part: amounts for part, amounts in resources.items() if amounts},
    }
    return {
        "modelFormat": {"name": model_format},
        "protocolVersion": readers.choice("protocol", inputs.get("protocol"), PROTOCOLS),
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


def _format(metadata: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[str, str]:
    known = str(metadata.get("format") or "")
    wanted = readers.text("model_format", inputs.get("model_format")) or known
    wanted = wanted or constants.MODEL_FORMAT
    runtime = readers.dns_subdomain("runtime", inputs.get("runtime"))
    if known and known != wanted:
        raise InputError(
            f"model_format is {wanted!r}, but the model's own metadata says {known!r}. Leave "
            "model_format empty to serve it as what it is."
        )
    if wanted == "pytorch" and not runtime:
        raise InputError(
            "model_format 'pytorch' makes KServe take TorchServe, which serves only a .mar file in "
            "model-store/ with config/config.properties, not a checkpoint. If the model has that "
            "layout, name the runtime: runtime='kserve-torchserve'. A model that pytorch_job "
            f"exported has the format {constants.MODEL_FORMAT!r}."
        )
    return wanted, runtime


def manifest(inputs: ServiceInputs, existing: Object | None) -> Object:
    """Build the InferenceService.

    Args:
        inputs: The checked inputs.
        existing: The service as it is, or None. Labels, annotations and components that are not
            ours are kept.

    Returns:
        The object, with the existing one's resourceVersion.
    """
    service = copy.deepcopy(existing) if existing else {"metadata": {}, "spec": {}}
    service |= {
        "apiVersion": constants.INFERENCE_SERVICE.api_version,
        "kind": constants.INFERENCE_SERVICE.kind,
    }
    metadata = service["metadata"]
    metadata["name"] = inputs.name
    if inputs.namespace:
        metadata["namespace"] = inputs.namespace
    # Whoever manages the service already, such as Helm, goes on doing so.
    managed = {constants.MANAGED_BY_LABEL: constants.PREFIX}
    metadata["labels"] = managed | (metadata.get("labels") or {}) | dict(inputs.labels)
    if inputs.annotations:
        metadata["annotations"] = (metadata.get("annotations") or {}) | dict(inputs.annotations)
    predictor = copy.deepcopy(dict(inputs.predictor))
    before = dig(service, "spec", "predictor") or {}
    for field in ("labels", "annotations"):
        kept = {**(before.get(field) or {}), **predictor.get(field, {})}
        if kept:
            predictor[field] = kept
    service["spec"] = {**(service.get("spec") or {}), "predictor": predictor}
    service.pop("status", None)
    return service
