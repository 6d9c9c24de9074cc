"""What an InferenceService's Deployment and Service look like in KServe's Standard mode.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice/{components/predictor,utils}`,
`pkg/webhook/admission/pod/storage_initializer_injector` and `pkg/credentials/s3`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    MODEL_MOUNT,
    SERVICE,
    SERVING_HOST_ENV,
)
from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects

Object = dict[str, Any]

PREFIX = "serving.kserve.io"
POD_LABEL = f"{PREFIX}/inferenceservice"
MODE_ANNOTATION = f"{PREFIX}/deploymentMode"
CONTAINER = "kserve-container"
INITIALIZER = "storage-initializer"
DEFAULT_PORT = 8080
SERVICE_PORT = 80

_PVC_VOLUME, _DOWNLOAD_VOLUME = "kserve-pvc-source", "kserve-provision-location"
_STORAGE_CONFIG = "storage-config"
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
# Of Go's templates: a field of the service, or a raw string, which stands for itself.
_PLACEHOLDER = re.compile(r"\{\{\s*(?:\.(Name|Namespace)|`([^`]*)`)\s*\}\}")
_S3_VARIABLES = {
    f"{PREFIX}/s3-endpoint": "S3_ENDPOINT",
    f"{PREFIX}/s3-region": "AWS_DEFAULT_REGION",
    f"{PREFIX}/s3-usehttps": "S3_USE_HTTPS",
    f"{PREFIX}/s3-verifyssl": "S3_VERIFY_SSL",
    f"{PREFIX}/s3-useanoncredential": "awsAnonymousCredential",
}


class Refusal(Exception):
    """KServe cannot serve the spec.

    Attributes:
        reason: The `reason` of its failure info, such as `NoSupportingRuntime`.
        message: Its words.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def predictor_name(service: Object) -> str:
    """The name of the predictor's Deployment and Service."""
    return f"{objects.name(service)}-predictor"


def select_runtime(service: Object, runtimes: list[Object]) -> Object:
    """Choose the runtime that serves a model.

    Args:
        service: The InferenceService.
        runtimes: The ServingRuntimes of its namespace, then the cluster's.

    Raises:
        Refusal: There is none.
    """
    model = service["spec"]["predictor"].get("model")
    if not model:
        raise Refusal(
            "InvalidPredictorSpec", "the local cluster knows predictors with a model only"
        )
    if model.get("runtime"):
        return _named_runtime(model, runtimes)
    for runtime in runtimes:
        if not runtime["spec"].get("disabled") and _supports(runtime, model, auto=True):
            return runtime
    raise Refusal("NoSupportingRuntime", "No runtime found to support specified framework/version")


def _named_runtime(model: Object, runtimes: list[Object]) -> Object:
    found = next((r for r in runtimes if objects.name(r) == model["runtime"]), None)
    if found is None:
        raise Refusal("RuntimeNotRecognized", "Waiting for runtime to become available")
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


def predictor_deployment(service: Object, runtime: Object, storage: list[Object]) -> Object:
    """The Deployment of an InferenceService.

    Args:
        service: The InferenceService.
        runtime: Its runtime.
        storage: The variables with the credentials of its storage.

    Returns:
        The Deployment.

    Raises:
        Refusal: The runtime has no container that serves.
    """
    predictor, name = service["spec"]["predictor"], predictor_name(service)
    labels = {
        **(runtime["spec"].get("labels") or {}),
        **objects.labels(service),
        **(predictor.get("labels") or {}),
        POD_LABEL: objects.name(service),
        "component": "predictor",
        "app": f"isvc.{name}",
    }
    annotations = {
        **(runtime["spec"].get("annotations") or {}),
        **(objects.metadata(service).get("annotations") or {}),
        **(predictor.get("annotations") or {}),
    }
    metadata = {"labels": labels, "annotations": annotations}
    spec: Object = {
        "replicas": max(1, predictor.get("minReplicas", 1)),
        "selector": {"matchLabels": {"app": f"isvc.{name}"}},
        "template": {"metadata": metadata, "spec": _pod_spec(service, runtime, storage)},
    }
    if predictor.get("deploymentStrategy"):
        spec["strategy"] = predictor["deploymentStrategy"]
    return _owned(service, {**metadata, "name": name}, DEPLOYMENT, spec)


def predictor_service(service: Object, made: Object) -> Object:
    """The Service before the pods of a Deployment that `predictor_deployment` made."""
    container = made["spec"]["template"]["spec"]["containers"][0]
    ports = container.get("ports") or [{"containerPort": DEFAULT_PORT}]
    port = {"port": SERVICE_PORT, "targetPort": ports[0]["containerPort"], "protocol": "TCP"}
    metadata = {"name": predictor_name(service), "labels": made["metadata"]["labels"]}
    selector = made["spec"]["selector"]["matchLabels"]
    return _owned(service, metadata, SERVICE, {"selector": selector, "ports": [port]})


def _owned(service: Object, metadata: Object, kind: Any, spec: Object) -> Object:
    owner = {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "name": objects.name(service),
        "uid": objects.metadata(service)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {**metadata, "namespace": objects.namespace(service), "ownerReferences": [owner]}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": metadata,
        "spec": objects.copy(spec),
    }


def _pod_spec(service: Object, runtime: Object, storage: list[Object]) -> Object:
    predictor = service["spec"]["predictor"]
    container = _container(service, runtime)
    given = {k: v for k, v in runtime["spec"].items() if k not in _RUNTIME_FIELDS}
    given |= {k: v for k, v in predictor.items() if k not in _EXTENSIONS}
    spec: Object = objects.copy({**given, "containers": [container]})
    uri = predictor["model"].get("storageUri")
    if uri:
        _add_model(spec, container["name"], uri, storage)
    return spec


def _container(service: Object, runtime: Object) -> Object:
    """The runtime's container with what the model says over it."""
    own = next((c for c in runtime["spec"]["containers"] if c["name"] == CONTAINER), None)
    if own is None:
        raise Refusal(
            "InvalidPredictorSpec", "no container configuration found in selected runtime"
        )
    model = service["spec"]["predictor"]["model"]
    merged = {**own, **{k: v for k, v in model.items() if k not in _MODEL_FIELDS}}
    merged["args"] = [*(own.get("args") or []), *(model.get("args") or [])]
    extra = [
        {"name": "INFERENCE_SERVICE_NAME", "value": objects.name(service)},
        {"name": SERVING_HOST_ENV, "value": loopback.ADDRESS},
    ]
    variables = [*(own.get("env") or []), *(model.get("env") or []), *extra]
    merged["env"] = list({each["name"]: each for each in variables}.values())
    asked, default = model.get("resources") or {}, own.get("resources") or {}
    merged["resources"] = {
        part: {**(default.get(part) or {}), **(asked.get(part) or {})}
        for part in ("requests", "limits")
        if default.get(part) or asked.get(part)
    }
    values = {"Name": objects.name(service), "Namespace": objects.namespace(service)}
    text = _PLACEHOLDER.sub(lambda m: values[m[1]] if m[1] else m[2], json.dumps(merged))
    replaced: Object = json.loads(text)
    return replaced


def _add_model(spec: Object, container: str, uri: str, storage: list[Object]) -> None:
    """Mount the model's claim, or download the model before the server starts."""
    parts = urlsplit(uri)
    mount: Object = {"name": _DOWNLOAD_VOLUME, "mountPath": MODEL_MOUNT}
    volume: Object = {"name": _DOWNLOAD_VOLUME, "emptyDir": {}}
    if parts.scheme == "pvc":
        mount = {"name": _PVC_VOLUME, "mountPath": MODEL_MOUNT, "subPath": parts.path.strip("/")}
        source = {"claimName": parts.netloc}
        volume = {"name": _PVC_VOLUME, "persistentVolumeClaim": source}
    else:
        initializer = {
            "name": INITIALIZER,
            "image": "kserve/storage-initializer:v0.20.0",
            "command": ["python", "-m", "kfp_pytorch.local.storage_initializer"],
            "args": [uri, MODEL_MOUNT],
            "env": storage,
            "volumeMounts": [objects.copy(mount)],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        spec["initContainers"] = [*(spec.get("initContainers") or []), initializer]
    spec["volumes"] = [*(spec.get("volumes") or []), volume]
    served = next(each for each in spec["containers"] if each["name"] == container)
    mounts = served.get("volumeMounts") or []
    served["volumeMounts"] = [*mounts, {**mount, "readOnly": True}]


def storage_variables(
    service: Object, account: Object | None, secret: Callable[[str], Object | None]
) -> list[Object]:
    """The variables with the credentials of an InferenceService's storage.

    Args:
        service: The InferenceService.
        account: Its service account, or None.
        secret: Gives a Secret of its namespace by name, or None.

    Returns:
        Variables that refer to Secrets; none where there are no credentials.
    """
    key = (service["spec"]["predictor"]["model"].get("storage") or {}).get("key")
    if key:
        reference = {"name": _STORAGE_CONFIG, "key": key}
        return [{"name": "STORAGE_CONFIG", "valueFrom": {"secretKeyRef": reference}}]
    for entry in (account or {}).get("secrets") or []:
        found = secret(entry["name"])
        if found and "AWS_ACCESS_KEY_ID" in (found.get("data") or {}):
            return _s3_variables(found)
    return []


def _s3_variables(secret: Object) -> list[Object]:
    name, annotations = objects.name(secret), objects.metadata(secret).get("annotations") or {}
    variables = [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": name, "key": key}}}
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    ]
    variables += [
        {"name": variable, "value": annotations[annotation]}
        for annotation, variable in _S3_VARIABLES.items()
        if annotation in annotations
    ]
    endpoint = _endpoint_url(annotations)
    return variables + ([{"name": "AWS_ENDPOINT_URL", "value": endpoint}] if endpoint else [])


def _endpoint_url(annotations: Mapping[str, str]) -> str:
    endpoint = annotations.get(f"{PREFIX}/s3-endpoint", "")
    scheme = "http" if annotations.get(f"{PREFIX}/s3-usehttps") == "0" else "https"
    return f"{scheme}://{endpoint}" if endpoint else ""
