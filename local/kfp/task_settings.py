"""The settings of a task: for its own pod, and for a parameter `dsl.TaskConfig` of its step.

KFP's driver sets and passes them; kfp.local does not:
https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/driver.go (TaskConfig) and
k8s.go (extendPodSpecPatch).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_TYPE = "TASK_CONFIG"
_RESOURCES = "RESOURCES"
# Under which name KFP passes on a field of a pod's spec.
_PASSED_AS = {
    "env": "ENV",
    "volumes": "KUBERNETES_VOLUMES",
    "volumeMounts": "KUBERNETES_VOLUMES",
    "tolerations": "KUBERNETES_TOLERATIONS",
    "nodeSelector": "KUBERNETES_NODE_SELECTOR",
}
# Kubernetes' part and name of an amount, and KFP's name for it.
_AMOUNTS = (
    ("requests", "cpu", "resourceCpuRequest"),
    ("requests", "memory", "resourceMemoryRequest"),
    ("limits", "cpu", "resourceCpuLimit"),
    ("limits", "memory", "resourceMemoryLimit"),
)
# A parameter as the whole of a text.
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
Object = dict[str, Any]


@dataclass(frozen=True)
class _Holder:
    """How a task uses a kind of object: KFP's names for it, and Kubernetes' for the same."""

    parameter: str  # where its name is given, or a parameter that has it
    names: tuple[str, ...]  # where the name was given in earlier versions
    source: str  # of a volume, or of a variable's value
    named: str  # where that has the name
    key: str = ""  # of a variable: where the key is given


_AS_VOLUME = {
    "pvcMount": _Holder("pvcNameParameter", ("constant",), "persistentVolumeClaim", "claimName"),
    "secretAsVolume": _Holder("secretNameParameter", ("secretName",), "secret", "secretName"),
    "configMapAsVolume": _Holder("configMapNameParameter", ("configMapName",), "configMap", "name"),
}
_AS_ENV = {
    "secretAsEnv": _Holder(
        "secretNameParameter", ("secretName",), "secretKeyRef", "name", "secretKey"
    ),
    "configMapAsEnv": _Holder(
        "configMapNameParameter", ("configMapName",), "configMapKeyRef", "name", "configMapKey"
    ),
}
OBJECT_SETTINGS = frozenset([*_AS_VOLUME, *_AS_ENV])
"""What `kfp.kubernetes` sets that uses a Secret, a ConfigMap or a claim."""
_FIELDS = "fieldPathAsEnv"
# Volumes that are empty at the start of a step; KFP passes none of these on.
_EMPTY = ("emptyDirMounts", "genericEphemeralVolume")
HEEDED = OBJECT_SETTINGS | {_FIELDS, *_EMPTY}
"""What `kfp.kubernetes` sets that a run on this machine heeds."""


def with_task_configs(
    spec: Object, kubernetes: Object | None = None, known: Mapping[str, Any] | None = None
) -> Object:
    """Passes each task with a `dsl.TaskConfig` its environment, resources, placement and volumes.

    `kubernetes`: what `kfp.kubernetes` sets, by executor. `known`: the values of the pipeline's
    parameters that are known, for names that are given by these.
    """
    result = copy.deepcopy(spec)
    executors = result.get("deploymentSpec", {}).get("executors", {})
    for task, component in tasks(result):
        label = component.get("executorLabel", "")
        container = executors.get(label, {}).get("container", {})
        wanted = {each.get("field") for each in component.get("taskConfigPassthroughs", [])}
        settings = _settings(container, wanted)
        _name_accelerators(settings, task, known or {})
        set_on_pod = (kubernetes or {}).get(label, {})
        passed = _placement(set_on_pod) | of_objects(set_on_pod, known or {})
        passed["env"] = [*settings.get("env", []), *passed.get("env", [])]
        settings |= {
            field: value for field, value in passed.items() if value and _PASSED_AS[field] in wanted
        }
        for name, definition in component.get("inputDefinitions", {}).get("parameters", {}).items():
            if definition.get("parameterType") != _TYPE:
                continue
            given = task.setdefault("inputs", {}).setdefault("parameters", {})
            # Also where the pipeline passes a parameter of its own on: that has no value.
            if settings or name in given:
                given[name] = {"runtimeValue": {"constant": settings}}
    # The pipeline of a component that was compiled alone has it as a parameter.
    asked = result["root"].get("inputDefinitions", {}).get("parameters", {})
    for name in [name for name, of in asked.items() if of.get("parameterType") == _TYPE]:
        del asked[name]
    return result


def pod_settings(spec: Object, kubernetes: Object, known: Mapping[str, Any]) -> dict[str, Object]:
    """The variables and volumes of the steps' own pods, by executor; see `HEEDED`."""
    found = {}
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    for _, component in tasks(spec):
        label = component.get("executorLabel", "")
        passed_on = {
            each.get("field")
            for each in component.get("taskConfigPassthroughs", [])
            if not each.get("applyToTask")
        }
        settings = {
            field: value
            for field, value in of_objects(kubernetes.get(label, {}), known).items()
            if _PASSED_AS[field] not in passed_on
        }
        settings = _with_empty_volumes(settings, kubernetes.get(label, {}))
        if settings:
            own = executors.get(label, {}).get("container", {}).get("env", [])
            found[label] = {**settings, "env": [*own, *settings.get("env", [])]}
    return found


def tasks(spec: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The tasks of a pipeline and of those within it, each with its component."""
    components = spec.get("components", {})
    for dag in (spec["root"], *components.values()):
        for task in dag.get("dag", {}).get("tasks", {}).values():
            yield task, components[task["componentRef"]["name"]]


def of_objects(given: Object, known: Mapping[str, Any]) -> Object:
    """The `env`, `volumes` and `volumeMounts` that KFP passes on: of objects, and of pods' fields.

    `given`: what `kfp.kubernetes` sets on the task. One whose name only the run knows is called by
    its kind.
    """
    found: Object = {"env": [], "volumes": [], "volumeMounts": []}
    for setting, holder in _AS_VOLUME.items():
        for each in given.get(setting, []):
            name = name_of(each, setting, known) or setting.lower()
            optional = {"optional": True} if each.get("optional") else {}
            found["volumes"].append({"name": name, holder.source: {holder.named: name, **optional}})
            sub_path = {"subPath": each["subPath"]} if each.get("subPath") else {}
            mount = {"name": name, "mountPath": each.get("mountPath", ""), **sub_path}
            found["volumeMounts"].append(mount)
    for setting, holder in _AS_ENV.items():
        for each in given.get(setting, []):
            name = name_of(each, setting, known) or setting.lower()
            optional = {"optional": True} if each.get("optional") else {}
            found["env"] += [
                {
                    "name": pair["envVar"],
                    "valueFrom": {
                        holder.source: {holder.named: name, "key": pair[holder.key], **optional}
                    },
                }
                for pair in each.get("keyToEnv", [])
            ]
    found["env"] += [
        {"name": each["name"], "valueFrom": {"fieldRef": {"fieldPath": each["fieldPath"]}}}
        for each in given.get(_FIELDS, [])
    ]
    return {field: value for field, value in found.items() if value}


def _with_empty_volumes(settings: Object, given: Object) -> Object:
    """The settings of a pod with the volumes of it that are empty at its start."""
    empty = [each for setting in _EMPTY for each in given.get(setting, [])]
    if not empty:
        return settings
    volumes = [{"name": each["volumeName"], "emptyDir": {}} for each in empty]
    mounts = [{"name": each["volumeName"], "mountPath": each["mountPath"]} for each in empty]
    return {
        **settings,
        "volumes": [*settings.get("volumes", []), *volumes],
        "volumeMounts": [*settings.get("volumeMounts", []), *mounts],
    }


def _placement(given: Object) -> Object:
    """The placement that is known beforehand, in the form of the driver."""
    return {
        "tolerations": [t for t in given.get("tolerations", []) if "tolerationJson" not in t],
        "nodeSelector": given.get("nodeSelector", {}).get("labels", {}),
    }


def name_of(each: Object, setting: str, known: Mapping[str, Any]) -> str:
    """The name of the object that a setting uses; empty where only the run knows it."""
    holder = {**_AS_VOLUME, **_AS_ENV}[setting]
    # Earlier versions of KFP wrote a parameter without the message around it.
    source = each.get(holder.parameter) or each
    texts = (each.get(field) for field in holder.names)
    constant = source.get("runtimeValue", {}).get("constant") or next(filter(None, texts), "")
    return str(constant or known.get(source.get("componentInputParameter", ""), "") or "")


def _settings(container: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if _PASSED_AS["env"] in wanted and container.get("env"):
        # What KFP compiles has no key for an empty text.
        settings["env"] = [
            {"name": each["name"], "value": each.get("value", "")} for each in container["env"]
        ]
    resources = _resources(container.get("resources", {})) if _RESOURCES in wanted else {}
    if resources:
        settings["resources"] = resources
    return settings


def _name_accelerators(settings: Object, task: Object, known: Mapping[str, Any]) -> None:
    """Fills parameters into the names of resources: KFP fills them into values alone."""
    limits = settings.get("resources", {}).get("limits", {})
    for name in [name for name in limits if _PARAMETER.fullmatch(name)]:
        given = task.get("inputs", {}).get("parameters", {}).get(_PARAMETER.sub(r"\1", name), {})
        value = known.get(given.get("componentInputParameter", ""))
        if value:
            limits[str(value)] = limits.pop(name)


def _resources(written: dict[str, Any]) -> dict[str, dict[str, str]]:
    resources: dict[str, dict[str, str]] = {}
    for part, name, field in _AMOUNTS:
        if field in written:
            resources.setdefault(part, {})[name] = str(written[field])
    accelerator = written.get("accelerator", {})
    kind, count = accelerator.get("resourceType"), accelerator.get("resourceCount")
    if kind and count:
        resources.setdefault("limits", {})[kind] = str(count)
    return resources
