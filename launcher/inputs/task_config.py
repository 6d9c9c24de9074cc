"""What an author set on the KFP task, as the backend passes it to a component: `dsl.TaskConfig`.

The backend fills it as JSON with the keys of a pod's spec, null where nothing was set:
https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/driver.go (TaskConfig).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, placement
from kfp_pytorch.launcher.inputs.readers import mapping, sequence, text


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a task, each in Kubernetes' form, empty where unset.

    Attributes:
        volume_mounts: A container's `volumeMounts`.
    """

    affinity: dict[str, Any] = field(default_factory=dict)  # a pod's `affinity`
    tolerations: tuple[dict[str, Any], ...] = ()  # a pod's `tolerations`
    node_selector: dict[str, str] = field(default_factory=dict)  # a pod's `nodeSelector`
    env: list[dict[str, Any]] = field(default_factory=list)  # a container's `env`
    volumes: list[dict[str, Any]] = field(default_factory=list)  # a pod's `volumes`
    volume_mounts: list[dict[str, Any]] = field(default_factory=list)
    resources: dict[str, dict[str, str]] = field(default_factory=dict)  # a container's `resources`


def read(_name: str, value: Any) -> TaskSettings:
    """Read what KFP passes for a parameter of type `dsl.TaskConfig`.

    `_name`: not used: messages name the setting. `value`: a `dsl.TaskConfig`, whose fields are all
    None in a local run; the backend's JSON object; or None. Nulls and empty parts are left out,
    and whole floats made integers.
    """

    def objects(field: str) -> Any:
        return _pruned(mapping(f"the task's {field}", _get(value, field)))

    def lists(field: str) -> Any:
        return _pruned(sequence(f"the task's {field}", _get(value, field)))

    def named(field: str) -> Any:
        for i, item in enumerate(lists(field)):
            where = f"the task's {field}[{i}]"
            if not text(f"{where}.name", mapping(where, item).get("name")):
                raise InputError(f"{where} has no name.")
        return lists(field)

    resources = objects("resources")
    return TaskSettings(
        affinity=objects("affinity"),
        tolerations=placement.tolerations("the task's tolerations", lists("tolerations")),
        node_selector=k8s.label_map("the task's node_selector", objects("node_selector")),
        env=named("env"),
        volumes=named("volumes"),
        volume_mounts=named("volume_mounts"),
        resources={
            part: {name: str(amount) for name, amount in mapping(part, resources[part]).items()}
            for part in ("requests", "limits")
            if part in resources
        },
    )


def _get(task_config: Any, field: str) -> Any:
    if not isinstance(task_config, dict):
        return getattr(task_config, field, None)
    first, *more = field.split("_")
    return task_config.get("".join([first, *map(str.title, more)]), task_config.get(field))


def _pruned(value: Any) -> Any:
    """Copy JSON without its nulls, which Go writes for what is not set."""
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_pruned(item) for item in value if item is not None]
    return value
