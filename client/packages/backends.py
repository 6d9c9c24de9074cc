"""Which KFP backend knows what of a pipeline package.

A backend refuses a package with a field that its protobuf messages do not have; it reads the
settings of `kfp.kubernetes` when a run begins, and the run then fails. The versions are those of
the messages that each release was built with (its `go.mod` names them), from 2.0.0 to 2.17.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec import pipeline_spec_pb2 as messages

from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.messages import DEPLOYMENT, kubernetes_settings

Version = tuple[int, int]
_FIRST: Version = (2, 0)
_K8S, _SPEC = "kfp_kubernetes.", "ml_pipelines."
_RESOURCES = "PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec."
# What each version was the first to know: the fields of a message, by its name.
_NEW: dict[Version, dict[str, str]] = {
    (2, 1): {
        f"{_K8S}KubernetesExecutorConfig": "activeDeadlineSeconds configMapAsEnv configMapAsVolume "
        "fieldPathAsEnv imagePullPolicy imagePullSecret podMetadata tolerations",
    },
    (2, 2): {
        f"{_K8S}KubernetesExecutorConfig": "genericEphemeralVolume nodeAffinity podAffinity",
        f"{_K8S}ConfigMapAsVolume": "optional",
        f"{_K8S}SecretAsVolume": "optional",
    },
    (2, 3): {f"{_K8S}KubernetesExecutorConfig": "emptyDirMounts enabledSharedMemory"},
    (2, 4): {
        f"{_SPEC}ComponentSpec": "singlePlatformSpecs",
        f"{_SPEC}PipelineTaskSpec.CachingOptions": "cacheKey",
        f"{_SPEC}SinglePlatformSpec": "config pipelineConfig platform",
        f"{_SPEC}{_RESOURCES}AcceleratorConfig": "resourceCount resourceType",
        f"{_SPEC}{_RESOURCES[:-1]}": "resourceCpuLimit resourceCpuRequest resourceMemoryLimit "
        "resourceMemoryRequest",
    },
    (2, 5): {
        f"{_K8S}ConfigMapAsEnv": "configMapNameParameter",
        f"{_K8S}ConfigMapAsVolume": "configMapNameParameter",
        f"{_K8S}ImagePullSecret": "secretNameParameter",
        f"{_K8S}NodeSelector": "nodeSelectorJson",
        f"{_K8S}PvcMount": "pvcNameParameter",
        f"{_K8S}SecretAsEnv": "secretNameParameter",
        f"{_K8S}SecretAsVolume": "secretNameParameter",
        f"{_K8S}Toleration": "tolerationJson",
    },
    (2, 14): {
        f"{_K8S}NodeAffinityTerm": "nodeAffinityJson",
        f"{_SPEC}PipelineConfig": "workspace",
    },
    (2, 15): {
        f"{_K8S}ConfigMapAsEnv": "optional",
        f"{_K8S}SecretAsEnv": "optional",
        f"{_SPEC}ComponentSpec": "taskConfigPassthroughs",
        f"{_SPEC}ParameterType.ParameterTypeEnum": "TASK_CONFIG",
        f"{_SPEC}PipelineDeploymentConfig.ImporterSpec": "downloadToWorkspace",
        f"{_SPEC}RuntimeArtifact": "customPath",
    },
    (2, 16): {
        f"{_K8S}KubernetesExecutorConfig": "securityContext",
        f"{_K8S}PvcMount": "subPath",
        f"{_SPEC}ComponentInputsSpec.ParameterSpec": "literals",
    },
    (2, 17): {
        f"{_K8S}CreatePvc": "dataSource",
        f"{_SPEC}PipelineConfig": "activeDeadlineSeconds resourceTtlOnCompletion "
        "resourceTtlOnFailure resourceTtlOnSuccess",
    },
}
_SINCE = {
    f"{message}.{field}": version
    for version, fields in _NEW.items()
    for message, names in fields.items()
    for field in names.split()
}


def read_version(text: str) -> Version:
    """Reads a backend's version, such as `2.15` or `v2.15.0`.

    Raises click.ClickException: it is none, or that of KFP 1.
    """
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.\d+\S*)?", text.strip())
    if not match:
        raise click.ClickException(f"{text!r} is no version of KFP; write it as 2.15.")
    version = (int(match[1]), int(match[2]))
    if version < _FIRST:
        raise click.ClickException(f"KFP {text} is too old: these pipelines need KFP 2.")
    return version


def check(package: Package, version: Version) -> None:
    """Refuses a package with what a backend of that version does not know.

    Raises click.ClickException: it names each such field, and the version that knows it.
    """
    found = {
        f"{where} (KFP {since[0]}.{since[1]})": since
        for where, since in _used(package)
        if since > version
    }
    if found:
        least = max(found.values())
        raise click.ClickException(
            f"{package.pipeline_name} needs KFP {least[0]}.{least[1]} or later, and this is "
            f"{version[0]}.{version[1]}, which does not know: {', '.join(sorted(found))}."
        )


def needed(package: Package) -> Version:
    """The first version that knows all that a package has."""
    return max((since for _, since in _used(package)), default=_FIRST)


def _used(package: Package) -> Iterator[tuple[str, Version]]:
    """What a package has of the fields that not every version knows, with its place."""
    yield from _within(package.spec, messages.PipelineSpec.DESCRIPTOR, "")
    yield from _within(package.platform, messages.PlatformSpec.DESCRIPTOR, "platform")
    for label, settings in kubernetes_settings(package.platform).items():
        yield from _within(settings, KubernetesExecutorConfig.DESCRIPTOR, label)


def _within(value: Any, descriptor: Any, where: str) -> Iterator[tuple[str, Version]]:
    if not isinstance(value, dict) or descriptor.full_name.startswith("google.protobuf."):
        return
    fields = {field.json_name: field for field in descriptor.fields}
    for key, item in value.items():
        field, place = fields[key], f"{where}.{key}".lstrip(".")
        since = _SINCE.get(f"{descriptor.full_name}.{key}")
        if since:
            yield place, since
        yield from _of_field(item, field, place)


def _of_field(value: Any, field: Any, where: str) -> Iterator[tuple[str, Version]]:
    message = field.message_type
    if message and message.GetOptions().map_entry:
        inner = message.fields_by_name["value"]
        for key, item in value.items():
            yield from _of_field(item, inner, f"{where}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _of_item(item, field, where)
    else:
        yield from _of_item(value, field, where)


def _of_item(value: Any, field: Any, where: str) -> Iterator[tuple[str, Version]]:
    if field.enum_type:
        since = _SINCE.get(f"{field.enum_type.full_name}.{value}")
        if since:
            yield f"{where}={value}", since
        return
    message = field.message_type
    if field.full_name == DEPLOYMENT:
        message = messages.PipelineDeploymentConfig.DESCRIPTOR
    if message:
        yield from _within(value, message, where)
