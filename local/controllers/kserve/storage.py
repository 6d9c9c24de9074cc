"""How a predictor's pod gets its model: from a claim, or by the storage initializer.

Source: kserve v0.20, `pkg/webhook/admission/pod/storage_initializer_injector` and
`pkg/credentials/s3`.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from kfp_pytorch.launcher.constants import MODEL_MOUNT
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object

INITIALIZER = "storage-initializer"
_ANNOTATION = "serving.kserve.io/s3-"
_PVC_VOLUME, _DOWNLOAD_VOLUME = "kserve-pvc-source", "kserve-provision-location"
STORAGE_CONFIG = "storage-config"
_S3_VARIABLES = {
    "endpoint": "S3_ENDPOINT",
    "region": "AWS_DEFAULT_REGION",
    "usehttps": "S3_USE_HTTPS",
    "verifyssl": "S3_VERIFY_SSL",
    "useanoncredential": "awsAnonymousCredential",
}


def add_model(spec: Object, container: str, uri: str, variables: list[Object]) -> None:
    """Mount the model's claim, or download the model before the server starts; changes `spec`."""
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
            "command": ["python", "-m", "kfp_pytorch.local.controllers.kserve.storage_initializer"],
            "args": [uri, MODEL_MOUNT],
            "env": variables,
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
    """The variables with the credentials of an InferenceService's storage, from Secrets."""
    key = (service["spec"]["predictor"]["model"].get("storage") or {}).get("key")
    if key:
        reference = {"name": STORAGE_CONFIG, "key": key}
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
        {"name": variable, "value": annotations[_ANNOTATION + key]}
        for key, variable in _S3_VARIABLES.items()
        if _ANNOTATION + key in annotations
    ]
    endpoint = annotations.get(f"{_ANNOTATION}endpoint", "")
    scheme = "http" if annotations.get(f"{_ANNOTATION}usehttps") == "0" else "https"
    url = {"name": "AWS_ENDPOINT_URL", "value": f"{scheme}://{endpoint}"}
    return [*variables, url] if endpoint else variables
