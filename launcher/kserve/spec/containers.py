"""What runs: a runtime's container with a model, a container of one's own, a transformer."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, placement, pod_rules
from kfp_pytorch.launcher.kserve.deploy_inputs import DeployInputs
from kfp_pytorch.launcher.kserve.names import (
    CONTAINER,
    HUGGING_FACE,
    PROTOCOL_ENV,
    PROTOCOL_VERSIONS,
    STORAGE_URI_ENV,
    VLLM,
)
from kfp_pytorch.launcher.kserve.spec.model import Source, named_by_args

# The restricted Pod Security Standard. Knative takes no other field of a container's.
_SECURITY = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
# By what a server is told the model's name, where its own default is not the right one.
_NAME_OPTIONS = {
    constants.MODEL_FORMAT: "--model_name",
    HUGGING_FACE: "--model_name",
    VLLM: "--served-model-name",
}


def server(given: DeployInputs, source: Source) -> dict[str, Any]:
    """Return the field of a predictor that serves the model: `model` or `containers`."""
    _check_mounts(given, source)
    if given.container:
        return {"containers": [_own_container(given, source)]}
    return {"model": _model(given, source)}


def _resources(given: DeployInputs) -> dict[str, dict[str, str]]:
    amounts = {"cpu": given.cpu, "memory": given.memory}
    return placement.resources({}, amounts, given.gpu_resource, given.gpus)


def _model(given: DeployInputs, source: Source) -> dict[str, Any]:
    key, scheme = given.storage_key, source.uri.partition("://")[0]
    option = _NAME_OPTIONS.get(source.format, "")
    # Our predictor is always told, whatever the runtime's own default is.
    told = option and not named_by_args(given.args)
    told = told and (source.format == constants.MODEL_FORMAT or source.name != given.service_name)
    args = [*([f"{option}={source.name}"] if told else []), *map(environment.escaped, given.args)]
    fields = {
        "protocolVersion": PROTOCOL_VERSIONS.get(source.protocol, ""),
        "storageUri": source.uri,
        "runtime": given.runtime,
        # KServe reads the credentials of a key only where there are parameters too.
        "storage": key and {"key": key, "parameters": {"type": scheme, **given.storage_parameters}},
        "command": [_no_template(environment.escaped(word)) for word in given.command],
        "args": [_no_template(word) for word in args],
        "env": [_variable_without_template(variable) for variable in given.env],
        "resources": _resources(given),
        "volumeMounts": [dict(mount) for mount in given.volume_mounts],
    }
    set_ones = {field: value for field, value in fields.items() if value}
    return {"modelFormat": {"name": source.format}, **set_ones}


def _no_template(text: str) -> str:
    """Write a text so that it passes KServe, which takes a runtime's container for a template.

    It parses the container's JSON with Go's text/template (pkg/controller/v1beta1/inferenceservice/
    utils, ReplacePlaceholders); a raw string in an action stands for itself.
    """
    return text.replace("{{", "{{`{{`}}")


def _variable_without_template(variable: Mapping[str, Any]) -> dict[str, Any]:
    value = {"value": _no_template(variable["value"])} if "value" in variable else {}
    return {**variable, **value}


def _own_container(given: DeployInputs, source: Source) -> dict[str, Any]:
    if any(variable["name"] == STORAGE_URI_ENV for variable in given.env):
        raise InputError(f"env may not set {STORAGE_URI_ENV}; use storage_uri or model.")
    # KServe puts the model at /mnt/models, and gives the variable that path.
    place = [environment.variable(STORAGE_URI_ENV, source.uri)] if source.uri else []
    made = _container(given.container, [*_with_protocol(given.env, source), *place])
    fields = {
        "resources": _resources(given),
        "volumeMounts": [dict(mount) for mount in given.volume_mounts],
    }
    return made | {field: value for field, value in fields.items() if value}


def _with_protocol(env: Iterable[Mapping[str, Any]], source: Source) -> list[dict[str, Any]]:
    """Tell KServe the protocol of a container that is of no runtime; it takes it for v1."""
    given = [dict(variable) for variable in env]
    told = any(each["name"] == PROTOCOL_ENV for each in given)
    if told or source.protocol not in ("v2", "grpc"):
        return given
    return [*given, environment.variable(PROTOCOL_ENV, PROTOCOL_VERSIONS[source.protocol])]


def _container(written: Mapping[str, Any], env: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a container that no runtime has anything to do with."""
    made = copy.deepcopy(dict(written)) | {
        "name": CONTAINER,
        "command": [environment.escaped(word) for word in written.get("command", [])],
        "args": [environment.escaped(word) for word in written.get("args", [])],
        "env": env,
        "securityContext": _SECURITY | (written.get("securityContext") or {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    environment.check_size(made["command"], made["args"], env)
    made = {field: value for field, value in made.items() if value}
    pod_rules.check({"containers": [made]})
    return made


def transformer(given: DeployInputs, source: Source) -> dict[str, Any]:
    """Return the InferenceService's `transformer`; an empty object for none."""
    wanted = dict(given.transformer)
    if not wanted:
        return {}
    env, least, most = (wanted.pop(key) for key in ("env", "min_replicas", "max_replicas"))
    amounts = {"cpu": wanted.pop("cpu"), "memory": wanted.pop("memory")}
    if source.name != given.service_name and not named_by_args(wanted.get("args", [])):
        wanted["args"] = [*wanted.get("args", []), "--model_name", source.name]
    container = _container(wanted, _with_protocol(env, source))
    resources = placement.resources({}, amounts, "", 0)
    container |= {"resources": resources} if resources else {}
    fields = {"maxReplicas": most, "serviceAccountName": given.service_account}
    return {
        "minReplicas": least,
        "containers": [container],
        **{field: value for field, value in fields.items() if value},
    }


def _check_mounts(given: DeployInputs, source: Source) -> None:
    """Refuse mounts that no pod could have."""
    known = {volume["name"] for volume in given.volumes}
    for i, mount in enumerate(given.volume_mounts):
        path = str(mount["mountPath"]).rstrip("/")
        if source.uri and path == constants.MODEL_MOUNT:
            raise InputError(
                f"volume_mounts[{i}].mountPath is {path!r}, where KServe puts the model; give "
                "another path."
            )
        if given.container and mount["name"] not in known:
            raise InputError(
                f"volume_mounts[{i}] names the volume {mount['name']!r}, and volumes has "
                f"{', '.join(sorted(known)) or 'none'}."
            )
