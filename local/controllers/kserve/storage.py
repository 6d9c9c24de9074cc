"""How a predictor's pod gets its model: from a claim, or by the storage initializer.

Source: kserve v0.20, `pkg/webhook/admission/pod/storage_initializer_injector` and
`pkg/credentials/s3`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlsplit

from kfp_pytorch.launcher.constants import MODEL_MOUNT
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kserve.runtimes import NotHere

SCHEMES = ("s3", "gs", "http", "https", "hdfs", "webhdfs")
# What KServe reads, too.
_ON_A_CLUSTER = ("hf", "oci", "oci+native", "file")
INITIALIZER = "storage-initializer"
_ANNOTATION = "serving.kserve.io/s3-"
_PVC_VOLUME, _DOWNLOAD_VOLUME = "kserve-pvc-source", "kserve-provision-location"
STORAGE_CONFIG = "storage-config"
STORAGE_URI_ENV = "STORAGE_URI"
_S3_VARIABLES = {
    "endpoint": "S3_ENDPOINT",
    "region": "AWS_DEFAULT_REGION",
    "usehttps": "S3_USE_HTTPS",
    "verifyssl": "S3_VERIFY_SSL",
    "useanoncredential": "awsAnonymousCredential",
}


def add_model(spec: Object, container: str, uri: str, variables: list[Object]) -> None:
    """Mount the model's claim, or download the model before the server starts; changes `spec`.

    Raises NotHere: it is where nothing of this machine reads.
    """
    parts = urlsplit(uri)
    if parts.scheme in _ON_A_CLUSTER:
        raise NotHere(
            f"its model is at {uri}, which is not read on this machine: it reads "
            f"{', '.join(f'{scheme}://' for scheme in ('pvc', *SCHEMES))}"
        )
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


def storage_uri(predictor: Object) -> str:
    """Where a predictor's model lies, or an empty string: a container has it in a variable."""
    if "model" in predictor:
        return str(predictor["model"].get("storageUri") or "")
    variables = [v for c in predictor.get("containers") or [] for v in c.get("env") or []]
    found = (v.get("value") for v in variables if v["name"] == STORAGE_URI_ENV)
    return str(next(found, None) or "")


def storage_variables(
    service: Object, account: Object | None, secret: Callable[[str], Object | None]
) -> list[Object]:
    """The variables with the credentials of an InferenceService's storage, from Secrets."""
    storage = (service["spec"]["predictor"].get("model") or {}).get("storage") or {}
    if storage.get("key"):
        reference = {"name": STORAGE_CONFIG, "key": storage["key"]}
        override = json.dumps(storage.get("parameters") or {})
        return [
            {"name": "STORAGE_CONFIG", "valueFrom": {"secretKeyRef": reference}},
            {"name": "STORAGE_OVERRIDE_CONFIG", "value": override},
        ]
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
