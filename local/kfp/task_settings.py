"""The settings of a task, for a step with a parameter `dsl.TaskConfig`.

KFP's driver passes them to the step; kfp.local does not:
https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/driver.go (TaskConfig).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

_TYPE = "TASK_CONFIG"
# Kubernetes' part and name of an amount, and KFP's name for it.
_AMOUNTS = (
    ("requests", "cpu", "resourceCpuRequest"),
    ("requests", "memory", "resourceMemoryRequest"),
    ("limits", "cpu", "resourceCpuLimit"),
    ("limits", "memory", "resourceMemoryLimit"),
)
# What mounts a volume, and where it names what is mounted.
_MOUNTS = {
    "pvcMount": "constant",
    "secretAsVolume": "secretName",
    "configMapAsVolume": "configMapName",
}
Object = dict[str, Any]


def with_task_configs(spec: Object, kubernetes: Object | None = None) -> Object:
    """Passes each task with a `dsl.TaskConfig` its environment and resources.

    `kubernetes`: what `kfp.kubernetes` sets, such as a node selector, by executor: that is not in a
    pipeline's specification, and has no effect in a run on this machine.
    """
    result = copy.deepcopy(spec)
    executors = result.get("deploymentSpec", {}).get("executors", {})
    for task, component in tasks(result):
        label = component.get("executorLabel", "")
        container = executors.get(label, {}).get("container", {})
        wanted = {each.get("field") for each in component.get("taskConfigPassthroughs", [])}
        settings = _settings(container, wanted)
        if kubernetes:
            settings |= _of_kubernetes(kubernetes.get(label, {}))
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


def tasks(spec: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The tasks of a pipeline and of those within it, each with its component."""
    components = spec.get("components", {})
    for dag in (spec["root"], *components.values()):
        for task in dag.get("dag", {}).get("tasks", {}).values():
            yield task, components[task["componentRef"]["name"]]


def _settings(container: dict[str, Any], wanted: set[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "ENV" in wanted and container.get("env"):
        # What KFP compiles has no key for an empty text.
        settings["env"] = [
            {"name": each["name"], "value": each.get("value", "")} for each in container["env"]
        ]
    resources = _resources(container.get("resources", {})) if "RESOURCES" in wanted else {}
    if resources:
        settings["resources"] = resources
    return settings


def _of_kubernetes(given: Object) -> Object:
    """The placement and the mounts that are known beforehand, in the form of the driver."""
    mounts = [
        # A volume has the name of what it is of; some are known in the run only.
        {"name": each.get(field) or f"{kind.lower()}-{i}", "mountPath": each.get("mountPath", "")}
        for kind, field in _MOUNTS.items()
        for i, each in enumerate(given.get(kind, []))
    ]
    return {
        "tolerations": [t for t in given.get("tolerations", []) if "tolerationJson" not in t],
        "nodeSelector": given.get("nodeSelector", {}).get("labels", {}),
        "volumes": [{"name": mount["name"]} for mount in mounts],
        "volumeMounts": mounts,
    }


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
