"""An InferenceService's Deployment, Service and autoscaler in KServe's Standard mode.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice/{components/predictor,utils}`.
"""

from __future__ import annotations

import json
import re
from functools import partial

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    MODEL_MOUNT,
    SERVICE,
    SERVING_HOST_ENV,
)
from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import AUTOSCALER
from kfp_pytorch.local.controllers.kserve.runtimes import NotHere, Refusal
from kfp_pytorch.local.controllers.kserve.storage import (
    STORAGE_URI_ENV,
    add_model,
    storage_uri,
)
from kfp_pytorch.local.processes import programs

PREFIX = "serving.kserve.io"
POD_LABEL = f"{PREFIX}/inferenceservice"
MODE_ANNOTATION = f"{PREFIX}/deploymentMode"
FORMAT_ANNOTATION = "modelFormat"
CONTAINER = "kserve-container"
DEFAULT_PORT = 8080
SERVICE_PORT = 80

# The fields of a model that are no container's.
_MODEL_FIELDS = (
    *("modelFormat", "protocolVersion", "runtime", "runtimeVersion"),
    *("storage", "storageUri", "args", "env", "resources", "name"),
)
# The fields of a predictor that are no pod's.
_EXTENSIONS = (
    *("model", "minReplicas", "maxReplicas", "timeout", "canaryTrafficPercent", "labels"),
    *("annotations", "batcher", "logger", "scaleMetric", "scaleTarget", "containerConcurrency"),
    *("deploymentStrategy", "autoScaling", "scaleMetricType", "workerSpec", "name", "containers"),
)
# A runtime's fields that are no pod's.
_RUNTIME_FIELDS = (
    *("supportedModelFormats", "protocolVersions", "multiModel", "containers", "annotations"),
    *("labels", "disabled", "replicas", "builtInAdapter", "grpcEndpoint", "grpcDataEndpoint"),
    *("httpDataEndpoint", "storageHelper", "workerSpec"),
)
_owned = partial(objects.controlled, owner_kind=INFERENCE_SERVICE)
# Of Go's templates: a field of the service, or a raw string.
_PLACEHOLDER = re.compile(r"\{\{\s*(?:\.(Name|Namespace)|`([^`]*)`)\s*\}\}")


def name_of(service: Object) -> str:
    """The name of the predictor's Deployment and Service."""
    own = service["spec"]["predictor"].get("name", "")
    return "-".join(filter(None, (objects.name(service), own, "predictor")))


def app_label(service: Object) -> str:
    """The value of the label `app`, by which the predictor's pods are found."""
    return f"isvc.{name_of(service)}"


def port_of(pod_spec: Object) -> int:
    """The port at which a predictor's pod takes requests."""
    ports = pod_spec["containers"][0].get("ports") or [{"containerPort": DEFAULT_PORT}]
    return int(ports[0]["containerPort"])


def make_deployment(service: Object, runtime: Object, storage: list[Object]) -> Object:
    """The Deployment of an InferenceService, without replicas: those the autoscaler sets.

    `storage`: the variables with the credentials of its storage. Raises Refusal.
    """
    if "transformer" in service["spec"]:
        raise NotHere(
            "its transformer is a second server, before the predictor, which is not run on this "
            "machine: leave transformer out for a local run, or run it on a cluster"
        )
    predictor, name = service["spec"]["predictor"], name_of(service)
    labels = {
        **(runtime["spec"].get("labels") or {}),
        **objects.labels(service),
        **(predictor.get("labels") or {}),
        POD_LABEL: objects.name(service),
        "component": "predictor",
        "app": app_label(service),
    }
    annotations = {
        **(runtime["spec"].get("annotations") or {}),
        **(objects.metadata(service).get("annotations") or {}),
        **(predictor.get("annotations") or {}),
    }
    annotations.pop(FORMAT_ANNOTATION, None)
    metadata = {"labels": labels, "annotations": annotations}
    spec: Object = {
        "selector": {"matchLabels": {"app": app_label(service)}},
        "template": {"metadata": metadata, "spec": _pod_spec(service, runtime, storage)},
    }
    if predictor.get("deploymentStrategy"):
        spec["strategy"] = predictor["deploymentStrategy"]
    # A copy: else its metadata would be that of its template, too.
    return _owned(DEPLOYMENT, objects.copy({**metadata, "name": name}), spec, service)


def make_service(service: Object, made: Object) -> Object:
    """The Service before the pods of a Deployment that `make_deployment` made."""
    target = port_of(made["spec"]["template"]["spec"])
    port = {"port": SERVICE_PORT, "targetPort": target, "protocol": "TCP"}
    metadata = {"name": name_of(service), "labels": made["metadata"]["labels"]}
    selector = made["spec"]["selector"]["matchLabels"]
    return _owned(SERVICE, metadata, {"selector": selector, "ports": [port]}, service)


def make_autoscaler(service: Object) -> Object:
    """The autoscaler that keeps the Deployment's replicas within the predictor's bounds."""
    predictor, name = service["spec"]["predictor"], name_of(service)
    least = max(1, predictor.get("minReplicas", 1))
    target = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.kind, "name": name}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": least,
        "maxReplicas": max(least, predictor.get("maxReplicas", 0)),
        "metrics": [{"type": "Resource", "resource": cpu}],
    }
    return _owned(AUTOSCALER, {"name": name}, spec, service)


def _pod_spec(service: Object, runtime: Object, storage: list[Object]) -> Object:
    predictor = service["spec"]["predictor"]
    container = _container(service, runtime)
    given = {k: v for k, v in runtime["spec"].items() if k not in _RUNTIME_FIELDS}
    given |= {k: v for k, v in predictor.items() if k not in _EXTENSIONS}
    spec: Object = objects.copy({**given, "containers": [container]})
    uri = storage_uri(predictor)
    if uri:
        add_model(spec, container["name"], uri, storage)
    return spec


def _check_command(container: Object, owner: str) -> None:
    """Raises NotHere. `owner`: whose container it is."""
    (program, *_) = container.get("command") or [""]
    if not program:
        raise NotHere(
            f"{owner} has no command, and an image ({container.get('image')}) "
            "is not run on this machine: give its container a command",
        )
    if not programs.is_here(program):
        raise NotHere(
            f"{owner} runs {program}, which is not on this machine: install "
            "it; its image is not run here",
        )


def _own_container(service: Object) -> Object:
    """The container that serves in place of a runtime's; KServe fills in nothing of it."""
    containers = service["spec"]["predictor"]["containers"]
    own = next((c for c in containers if c.get("name") == CONTAINER), containers[0])
    _check_command(own, "the predictor's container")
    env = [
        # The model is there by the time that the server starts.
        {**each, "value": MODEL_MOUNT} if each["name"] == STORAGE_URI_ENV else each
        for each in own.get("env") or []
    ]
    return _completed({**own, "name": CONTAINER, "env": env}, service)


def _completed(container: Object, service: Object) -> Object:
    """A container with the port, the probe and the variables that each predictor has."""
    port = {"containerPort": DEFAULT_PORT, "protocol": "TCP"}
    ports = container.get("ports") or [port]
    extra = [
        {"name": "INFERENCE_SERVICE_NAME", "value": objects.name(service)},
        {"name": SERVING_HOST_ENV, "value": loopback.ADDRESS},
    ]
    variables = [*(container.get("env") or []), *extra]
    return {
        "readinessProbe": _probe(int(ports[0]["containerPort"])),
        **container,
        "ports": ports,
        "env": list({each["name"]: each for each in variables}.values()),
    }


def _probe(port: int) -> Object:
    """The readiness probe of a runtime that has none."""
    period = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1}
    return {"tcpSocket": {"port": port}, **period, "failureThreshold": 3}


def _container(service: Object, runtime: Object) -> Object:
    if "model" not in service["spec"]["predictor"]:
        return _own_container(service)
    own = next((c for c in runtime["spec"]["containers"] if c["name"] == CONTAINER), None)
    if own is None:
        raise Refusal(
            "InvalidPredictorSpec", "no container configuration found in selected runtime"
        )
    model = service["spec"]["predictor"]["model"]
    merged = {**own, **{k: v for k, v in model.items() if k not in _MODEL_FIELDS}}
    _check_command(merged, f"the ServingRuntime {objects.name(runtime)}")
    merged["args"] = [*(own.get("args") or []), *(model.get("args") or [])]
    merged["env"] = [*(own.get("env") or []), *(model.get("env") or [])]
    merged = _completed(merged, service)
    given, default = model.get("resources") or {}, own.get("resources") or {}
    merged["resources"] = {
        part: {**(default.get(part) or {}), **(given.get(part) or {})}
        for part in ("requests", "limits")
        if default.get(part) or given.get(part)
    }
    values = {"Name": objects.name(service), "Namespace": objects.namespace(service)}
    text = _PLACEHOLDER.sub(lambda m: values[m[1]] if m[1] else m[2], json.dumps(merged))
    replaced: Object = json.loads(text)
    return replaced
