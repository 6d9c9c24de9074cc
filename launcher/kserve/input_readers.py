"""Readers of the inputs of `kserve_deploy`: each takes an input's name and value and checks it."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, readers, storage
from kfp_pytorch.launcher.kserve.names import (
    AUTOSCALER_ANNOTATION,
    MODE_ANNOTATION,
    STOP_ANNOTATION,
)
from kfp_pytorch.launcher.text import cut

# The fields of a container that no other input says.
_CONTAINER_FIELDS = (
    *("image", "command", "args", "ports", "workingDir", "imagePullPolicy", "envFrom"),
    *("lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "securityContext"),
)
_TRANSFORMER_FIELDS = ("env", "cpu", "memory", "min_replicas", "max_replicas")
_SAID_BY_INPUTS = {
    "name": "nothing: KServe calls it kserve-container",
    "env": "the input env",
    "resources": "the inputs cpu, memory and gpus",
    "volumeMounts": "the input volume_mounts",
}
# What KServe's storage initializer takes of an entry of the Secret `storage-config`, secrets not
# counted: `_update_with_storage_spec` in
# https://github.com/kserve/kserve/blob/v0.20.0/python/storage/kserve_storage/kserve_storage.py
_STORAGE_PARAMETERS = ("endpoint_url", "region", "verify_ssl", "anonymous", "ca_bundle")
_SECRETS = ("access_key_id", "secret_access_key")
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")
_FORMAT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_PATCHED = ("labels", "annotations")
_ANNOTATION_INPUTS = {MODE_ANNOTATION: "deployment_mode", AUTOSCALER_ANNOTATION: "autoscaler"}


def service_name(name: str, value: Any) -> str:
    """Make a service's name of the input."""
    given = storage.without_placeholder(readers.text(name, value), name)
    word = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
    if not word:
        raise InputError(
            f"{name} is {given!r}; it needs a letter or digit that a host's name may have "
            "(a-z, 0-9)."
        )
    return word if word[0].isalpha() else f"s-{word}"


def model_name(name: str, value: Any) -> str:
    """Read the name that a server has for its model; unset gives an empty string."""
    word = readers.text(name, value)
    if word and not _MODEL_NAME.fullmatch(word):
        raise InputError(
            f"{name} is {word!r}; it is a part of a URL: at most 255 letters, digits, '-', '_' and "
            "'.'."
        )
    return word


def model_format(name: str, value: Any) -> str:
    """Read the name of a model format; unset gives an empty string."""
    word = readers.text(name, value)
    if word and not _FORMAT.fullmatch(word):
        raise InputError(
            f"{name} is {cut(repr(word), 300)}; it is the name of a format that a serving runtime "
            "has in supportedModelFormats, such as sklearn: at most 63 letters, digits, '-', '_' "
            "and '.'."
        )
    return word


def storage_key(name: str, value: Any) -> str:
    """Read the name of an entry of a Secret; unset gives an empty string."""
    word = readers.text(name, value)
    if word and not _KEY.fullmatch(word):
        raise InputError(
            f"{name} is {cut(repr(word), 300)}; an entry of a Secret is called by at most 253 "
            "letters, digits, '-', '_' and '.'."
        )
    return word


def storage_uri(name: str, value: Any) -> str:
    """Read where a model lies; unset gives an empty string."""
    given = storage.without_placeholder(readers.text(name, value), name)
    if not given:
        return ""
    uri = storage.kserve_uri(given)
    is_folder = uri.partition("://")[0] in storage.SCHEMES
    return storage.parse(uri, name).uri if is_folder else uri


def storage_parameters(name: str, value: Any) -> dict[str, str]:
    """Read what replaces parts of an entry of the Secret `storage-config`."""
    given = readers.mapping(name, value)
    secret = next((key for key in _SECRETS if key in given), "")
    if secret:
        # The value is not shown.
        raise InputError(
            f"{name} has {secret}, which anybody who may read the service would see: it belongs "
            "into the Secret storage-config, into the entry that storage_key names."
        )
    read = readers.known_fields(name, given, _STORAGE_PARAMETERS)
    return {key: readers.rendered(f"{name}[{key!r}]", item) for key, item in read.items()}


def container(name: str, value: Any) -> dict[str, Any]:
    """Read a container that serves a model by itself, in Kubernetes' form; unset gives {}."""
    given = readers.mapping(name, value)
    field = next((field for field in _SAID_BY_INPUTS if field in given), "")
    if field:
        raise InputError(f"{name} may not have {field}; use {_SAID_BY_INPUTS[field]}.")
    return _container(name, readers.known_fields(name, given, _CONTAINER_FIELDS))


def transformer(name: str, value: Any) -> dict[str, Any]:
    """Read a transformer's container, with env, cpu, memory and replicas; unset gives {}."""
    given = readers.known_fields(name, value, (*_CONTAINER_FIELDS, *_TRANSFORMER_FIELDS))
    if not given:
        return {}
    least = readers.integer(f"{name}.min_replicas", given.pop("min_replicas", 1))
    most = readers.integer(f"{name}.max_replicas", given.pop("max_replicas", 0))
    check_replicas(least, most, f"{name}.")
    own = {
        "env": variables(f"{name}.env", given.pop("env", {})),
        "cpu": k8s.cpu(f"{name}.cpu", given.pop("cpu", "")),
        "memory": k8s.memory(f"{name}.memory", given.pop("memory", "")),
        "min_replicas": least,
        "max_replicas": most,
    }
    return _container(name, given) | own


def _container(name: str, given: dict[str, Any]) -> dict[str, Any]:
    if not given:
        return {}
    read = given | {"image": k8s.image(f"{name}.image", given.get("image"))}
    if not read["image"]:
        raise InputError(f"{name} has no image; give the name of the image that is to run.")
    if "command" in read:
        read["command"] = [*readers.command(f"{name}.command", read["command"])]
    if "args" in read:
        read["args"] = [*readers.strings(f"{name}.args", read["args"])]
    if "ports" in read:
        read["ports"] = [
            _port(f"{name}.ports[{i}]", item)
            for i, item in enumerate(readers.sequence(f"{name}.ports", read["ports"]))
        ]
    return read


def _port(name: str, value: Any) -> dict[str, Any]:
    """Read a port: a number alone is one of TCP."""
    fields = readers.mapping(name, value if isinstance(value, dict) else {"containerPort": value})
    number = readers.integer(name, fields.get("containerPort"), minimum=1, maximum=65535)
    if not number:
        raise InputError(f"{name} has no containerPort.")
    return {"protocol": "TCP", **fields, "containerPort": number}


def volumes(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Read a pod's volumes, in Kubernetes' form."""
    read: list[dict[str, Any]] = []
    for i, item in enumerate(readers.sequence(name, value)):
        volume = readers.mapping(f"{name}[{i}]", item)
        called = k8s.dns_label(f"{name}[{i}].name", volume.get("name"))
        if not called or len(volume) != 2:
            raise InputError(
                f"{name}[{i}] is {volume!r}; it must have a name and one source, such as "
                '{"name": "cache", "persistentVolumeClaim": {"claimName": "a-claim"}}.'
            )
        if called in (each["name"] for each in read):
            raise InputError(f"{name}[{i}] is the second volume {called!r}; rename one.")
        read.append(volume)
    return tuple(read)


def volume_mounts(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Read where volumes are mounted, in Kubernetes' form."""
    fields = ("name", "mountPath", "subPath", "subPathExpr", "readOnly", "mountPropagation")
    read: list[dict[str, Any]] = []
    for i, mount in enumerate(readers.objects(name, value, fields)):
        path = readers.text(f"{name}[{i}].mountPath", mount.get("mountPath"))
        if not mount.get("name") or not path.startswith("/"):
            raise InputError(
                f"{name}[{i}] is {mount!r}; it must have a volume's name and a mountPath that "
                'begins with /, as {"name": "cache", "mountPath": "/cache"}.'
            )
        if path in (each["mountPath"] for each in read):
            raise InputError(f"{name}[{i}] is the second mount at {path!r}; give another path.")
        read.append(mount)
    return tuple(read)


def batcher(name: str, value: Any) -> dict[str, int]:
    """Read the settings of KServe's batcher."""
    # It has a field `timeout` too, which no part of KServe 0.20 reads.
    fields = readers.known_fields(name, value, ("maxBatchSize", "maxLatency"))
    read = partial(readers.integer, minimum=1)
    return {key: read(f"{name}.{key}", item) for key, item in fields.items()}


def variables(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Read environment variables, together no larger than a container's may be."""
    env = environment.variables(name, value)
    environment.check_size((), (), env)
    return env


def service_annotations(name: str, value: Any) -> dict[str, str]:
    """Read annotations other than those that inputs of their own set."""
    read = k8s.annotation_map(name, value)
    for key, own in _ANNOTATION_INPUTS.items():
        if key in read:
            raise InputError(f"{name} may not have {key!r}; use {own}.")
    if read.get(STOP_ANNOTATION, "").lower() == "true":
        raise InputError(
            f"{name}[{STOP_ANNOTATION!r}] is 'true', so KServe would run nothing, and the "
            "step would never end. Leave it out; stop the service once it has been deployed."
        )
    return read


def service_patch(name: str, value: Any) -> dict[str, Any]:
    """Read a patch of the InferenceService: labels, annotations and the spec, no more."""
    given = readers.mapping(name, value)
    unknown = sorted(set(given) - {"metadata", "spec"})
    if unknown:
        raise InputError(
            f"{name} has {unknown[0]!r}; it may have metadata (labels and annotations) and spec."
        )
    metadata = readers.mapping(f"{name}.metadata", given.get("metadata"))
    fixed = sorted(set(metadata) - set(_PATCHED))
    if fixed:
        own = {"name": "service_name", "namespace": "namespace"}.get(fixed[0])
        raise InputError(
            f"{name} may not change metadata.{fixed[0]}"
            + (f"; use the input {own}." if own else ", only labels and annotations there.")
        )
    service_annotations(f"{name}.metadata.annotations", metadata.get("annotations"))
    spec = readers.mapping(f"{name}.spec", given.get("spec"))
    _check_patched_spec(f"{name}.spec", spec)
    return {key: part for key, part in (("metadata", metadata), ("spec", spec)) if part}


def _check_patched_spec(name: str, spec: dict[str, Any]) -> None:
    for part in ("predictor", "transformer"):
        fields = readers.mapping(f"{name}.{part}", spec.get(part))
        written = readers.mapping(f"{name}.{part}.annotations", fields.get("annotations"))
        removed = spec.get(part, {}) is None or fields.get("annotations", {}) is None
        if removed or SPEC_HASH_LABEL in written:
            raise InputError(
                f"{name} may not remove {part}, its annotations or {SPEC_HASH_LABEL}: the step "
                "knows its own revision by it."
            )
    if "canary" in spec or "canaryTrafficPercent" in (spec.get("predictor") or {}):
        raise InputError(f"{name} may not set a canary; use canary_traffic_percent.")


def check_replicas(least: int, most: int, where: str = "") -> None:
    """Refuse a largest number of replicas below the least; 0 is none."""
    if most and most < least:
        raise InputError(
            f"{where}max_replicas is {most}, less than {where}min_replicas, which is {least}."
        )
