"""What an author set on the KFP task, as the backend passes it to a component: `dsl.TaskConfig`.

The backend fills it as JSON with the keys of a pod's spec, null where nothing was set:
https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/driver.go (TaskConfig).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.inputs.readers import mapping, sequence

_FIELDS = {
    "affinity": "affinity",
    "tolerations": "tolerations",
    "node_selector": "nodeSelector",
    "env": "env",
    "volumes": "volumes",
    "volume_mounts": "volumeMounts",
    "resources": "resources",
}


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a task, each in Kubernetes' form, empty where unset.

    Attributes:
        affinity: A pod's `affinity`.
        tolerations: A pod's `tolerations`.
        node_selector: A pod's `nodeSelector`.
        env: A container's `env`.
        volumes: A pod's `volumes`.
        volume_mounts: A container's `volumeMounts`.
        resources: A container's `resources`.
    """

    affinity: dict[str, Any] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=list)
    node_selector: dict[str, str] = field(default_factory=dict)
    env: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    volume_mounts: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, dict[str, str]] = field(default_factory=dict)


def read(_name: str, value: Any) -> TaskSettings:
    """Read what KFP passes for a parameter of type `dsl.TaskConfig`.

    Args:
        _name: Not used: messages name the setting.
        value: A `dsl.TaskConfig`, whose fields are all None in a local run; the backend's JSON
            object; or None.

    Returns:
        The settings, with nulls and empty parts left out and whole floats made integers.

    Raises:
        InputError: If a field is of another type than the backend writes.
    """
    if value is None:
        return TaskSettings()
    found = {field: _get(value, field, key) for field, key in _FIELDS.items()}
    resources = _pruned(mapping("the task's resources", found["resources"]))
    return TaskSettings(
        affinity=_pruned(mapping("the task's affinity", found["affinity"])),
        tolerations=_pruned(sequence("the task's tolerations", found["tolerations"])),
        node_selector=mapping("the task's node selector", found["node_selector"]),
        env=_pruned(sequence("the task's env", found["env"])),
        volumes=_pruned(sequence("the task's volumes", found["volumes"])),
        volume_mounts=_pruned(sequence("the task's volume mounts", found["volume_mounts"])),
        resources={
            part: {name: str(amount) for name, amount in resources[part].items()}
            for part in ("requests", "limits")
            if part in resources
        },
    )


def _get(task_config: Any, name: str, key: str) -> Any:
    if isinstance(task_config, dict):
        return task_config.get(key, task_config.get(name))
    return getattr(task_config, name, None)


def _pruned(value: Any) -> Any:
    """Copy JSON without its nulls, which Go writes for what is not set."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_pruned(item) for item in value if item is not None]
    return value
