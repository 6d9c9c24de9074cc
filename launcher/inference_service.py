"""From a model and the inputs of `kserve_deploy` to an InferenceService, and what its status means.

No I/O. KServe's side: https://github.com/kserve/kserve/tree/v0.20.0/pkg/apis/serving/v1beta1
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from kfp_pytorch.launcher import checks, constants, environment, placement, storage
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.evidence import Object
from kfp_pytorch.launcher.podview import condition, dig

PREFIX = "serving.kserve.io"
MODE_ANNOTATION = f"{PREFIX}/deploymentMode"
POD_LABEL = f"{PREFIX}/inferenceservice"
HASH = constants.SPEC_HASH_LABEL
HOST_LIMIT = 63
GPU_RESOURCE = "nvidia.com/gpu"
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
        mode: `Standard` or `Knative`, or empty for the cluster's default.
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
    mode: str
    canary: bool
    spec_hash: str
    timeout: int
    made_in: str


@dataclass(frozen=True)
class Rollout:
    """How far the cluster is with the new revision.

    Attributes:
        done: Whether the new revision serves.
        waits_for: What is still missing, in words.
        refusal: What KServe says makes this spec impossible; it may still speak of the last one.
    """

    done: bool
    waits_for: str = ""
    refusal: str = ""


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
    mode = checks.choice("deployment_mode", inputs.get("deployment_mode"), tuple(MODES))
    canary = checks.integer(
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
    labels = checks.label_map("labels", inputs.get("labels"))
    annotations = checks.annotation_map("annotations", inputs.get("annotations"))
    if MODE_ANNOTATION in annotations:
        raise InputError(f"annotations may not have {MODE_ANNOTATION!r}; use deployment_mode.")
    if MODES[mode]:
        annotations[MODE_ANNOTATION] = mode
    # New weights may lie where the old ones did: their hash makes a revision of its own.
    whole = [predictor, labels, annotations, metadata.get("sha256", "")]
    spec_hash = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    predictor.setdefault("annotations", {})[HASH] = spec_hash
    if canary >= 0:  # after the hash: to shift traffic makes no new revision
        predictor["canaryTrafficPercent"] = canary
    return ServiceInputs(
        name=name,
        namespace=checks.dns_label("namespace", inputs.get("namespace")),
        protocol=predictor["model"]["protocolVersion"],
        predictor=predictor,
        labels={**labels, constants.MANAGED_BY_LABEL: constants.PREFIX},
        annotations=annotations,
        mode=MODES[mode],
        canary=canary >= 0,
        spec_hash=spec_hash,
        timeout=checks.integer("timeout", inputs.get("timeout"), default=900, minimum=1),
        made_in=str(metadata.get("namespace") or ""),
    )


def service_name(value: Any) -> str:
    """Make a service's name of what a person calls it.

    Raises:
        InputError: Nothing is left that a name may have, or KFP left a placeholder in it.
    """
    given = storage.filled_in(checks.text("service_name", value), "service_name")
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


def _predictor(
    name: str, model_uri: str, metadata: Mapping[str, Any], inputs: Mapping[str, Any]
) -> dict[str, Any]:
    replicas = checks.integer("min_replicas", inputs.get("min_replicas"), default=1)
    most = checks.integer("max_replicas", inputs.get("max_replicas"), default=0)
    if most and most < replicas:
        raise InputError(f"max_replicas is {most}, less than min_replicas, which is {replicas}.")
    fields = {
        "model": _model(name, model_uri, metadata, inputs),
        "serviceAccountName": checks.dns_subdomain(
            "service_account", inputs.get("service_account")
        ),
        "maxReplicas": most,
        "timeout": checks.integer("request_timeout", inputs.get("request_timeout"), default=0),
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
            "cpu": checks.quantity("cpu", inputs.get("cpu"), minimum="1m"),
            "memory": checks.quantity("memory", inputs.get("memory"), minimum="1Mi"),
        },
        checks.text("gpu_resource", inputs.get("gpu_resource"), GPU_RESOURCE),
        checks.integer("gpus", inputs.get("gpus"), default=0, maximum=4096),
    )
    key = checks.text("storage_key", inputs.get("storage_key"))
    env = list(environment.merged(inputs.get("env"), ()))
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
        "protocolVersion": checks.choice("protocol", inputs.get("protocol"), PROTOCOLS),
        "storageUri": uri,
    } | {field: value for field, value in fields.items() if value}


def _format(metadata: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[str, str]:
    known = str(metadata.get("format") or "")
    wanted = checks.text("model_format", inputs.get("model_format")) or known
    wanted = wanted or constants.MODEL_FORMAT
    runtime = checks.dns_subdomain("runtime", inputs.get("runtime"))
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
    for field, ours in (("labels", inputs.labels), ("annotations", inputs.annotations)):
        if ours:
            metadata[field] = {**(metadata.get(field) or {}), **ours}
    predictor = copy.deepcopy(dict(inputs.predictor))
    before = dig(service, "spec", "predictor") or {}
    for field in ("labels", "annotations"):
        kept = {**(before.get(field) or {}), **predictor.get(field, {})}
        if kept:
            predictor[field] = kept
    service["spec"] = {**(service.get("spec") or {}), "predictor": predictor}
    service.pop("status", None)
    return service


def mode_of(service: Object) -> str:
    """Return `Standard` or `Knative`, or an empty string while the cluster does not say."""
    said = dig(service, "status", "deploymentMode")
    said = said or dig(service, "metadata", "annotations", MODE_ANNOTATION) or ""
    if said in MODES:
        found = MODES[said]
        if found:
            return found
    return "Knative" if created_revision(service) else ""


def created_revision(service: Object) -> str:
    """Return the name of the newest Knative Revision, or an empty string."""
    return str(dig(_component(service), "latestCreatedRevision") or "")


def rollout(service: Object, workload: Object | None, spec_hash: str) -> Rollout:
    """Tell whether the new revision serves.

    After an update the old revision's Ready stays True, `observedGeneration` is a child object's
    and `modelStatus` is Loaded whenever Ready is True. What counts is that our own hash has reached
    what runs, and that it runs whole.

    Args:
        service: The InferenceService.
        workload: Its Deployment in Standard mode, or its newest Revision in Knative mode; None
            where there is none yet.
        spec_hash: The hash of the wanted spec.

    Returns:
        How far it is.
    """
    status = dig(service, "status", "modelStatus") or {}
    transition = str(status.get("transitionStatus") or "")
    refusal = _failure_words(status) if transition == "InvalidSpec" else ""
    waits_for = _workload_waits_for(service, workload, spec_hash)
    ready = condition(service, "Ready")
    if not waits_for and ready.get("status") != "True":
        words = f"{ready.get('reason', '')} {ready.get('message', '')}".strip()
        waits_for = f"the service to be Ready{f' ({words})' if words else ''}"
    if not waits_for and transition not in ("", "UpToDate"):
        waits_for = f"the model: {transition}"
    return Rollout(not waits_for, waits_for, refusal)


def _workload_waits_for(service: Object, workload: Object | None, spec_hash: str) -> str:
    if workload is None:
        return "the controller to take up the new spec"
    if mode_of(service) == "Knative":
        return _revision_waits_for(service, workload, spec_hash)
    spec, status = workload.get("spec") or {}, workload.get("status") or {}
    if dig(spec, "template", "metadata", "annotations", HASH) != spec_hash:
        return "the controller to take up the new spec"
    observed = int(status.get("observedGeneration") or 0)
    if observed < int(dig(workload, "metadata", "generation") or 0):
        return "the Deployment's controller"
    wanted = spec.get("replicas", 1)
    counts = {f: int(status.get(f) or 0) for f in ("updatedReplicas", "availableReplicas")}
    counts["replicas"] = int(status.get("replicas") or 0)
    if set(counts.values()) != {wanted}:
        refused = condition(workload, "ReplicaFailure")
        words = f": {refused.get('message')}" if refused.get("status") == "True" else ""
        return (
            f"pods of the new revision: {counts['updatedReplicas']} of {wanted} made, "
            f"{counts['availableReplicas']} available, {counts['replicas']} in all{words}"
        )
    return ""


def _revision_waits_for(service: Object, revision: Object, spec_hash: str) -> str:
    if dig(revision, "metadata", "annotations", HASH) != spec_hash:
        return "the controller to take up the new spec"
    ready = dig(_component(service), "latestReadyRevision")
    created = created_revision(service)
    return "" if created == ready else f"revision {created} to be ready (so far {ready or 'none'})"


def _component(service: Object) -> Object:
    return dig(service, "status", "components", "predictor") or {}


def _failure_words(status: Object) -> str:
    info = status.get("lastFailureInfo") or {}
    said = ": ".join(filter(None, (info.get("reason"), info.get("message"))))
    return said.strip() or str(status.get("transitionStatus"))


def model_failure(service: Object) -> str:
    """Return what KServe says of a model that failed to load, or an empty string."""
    status = dig(service, "status", "modelStatus") or {}
    return _failure_words(status) if status.get("lastFailureInfo") else ""


def base_url(service: Object, *, internal: bool) -> str:
    """Return the service's URL.

    Args:
        service: The InferenceService.
        internal: Whether the URL for callers within the cluster is wanted.

    Returns:
        The URL, or an empty string if the status has none.
    """
    path = ("status", "address", "url") if internal else ("status", "url")
    return str(dig(service, *path) or "")


def predict_url(base: str, name: str, protocol: str) -> str:
    """Return the exact URL that answers predictions.

    Args:
        base: The service's URL; older KServe puts a path into it.
        name: The model's name.
        protocol: `v1` or `v2`.
    """
    path = f"/v1/models/{name}:predict" if protocol == "v1" else f"/v2/models/{name}/infer"
    parts = urlsplit(base)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))
