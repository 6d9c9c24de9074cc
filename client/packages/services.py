"""The inputs of a task that deploys a model, as far as they can be checked before it runs.

Some are checked against each other. Where only the run knows one of them, it must not seem to
contradict the others, nor to be missing.
"""

from __future__ import annotations

from typing import Any

from kfp_pytorch.client.packages.known_tasks import KnownTask

_SCALING = ("scale_metric", "scale_target", "autoscaler")
# For each input, those that it is checked against. It is left out where one of them is not known.
_CHECKED_WITH = {
    **dict.fromkeys(
        _SCALING, (*_SCALING, "deployment_mode", "service_patch", "min_replicas", "max_replicas")
    ),
    "storage_parameters": ("storage_key",),
    "volume_mounts": ("volumes", "container"),
    "batcher": ("protocol", "model_format", "runtime"),
    "protocol": ("model_format", "runtime"),
    "model_name": ("args", "container"),
}
# Any of them may say where the model is, or that a server has it.
_PLACES = {"storage_uri", "container", "args", "model_format"}


def checkable(task: KnownTask, place: str, name: str) -> dict[str, Any]:
    """Returns the inputs to check.

    `place`: stands for a place of the model that only the run knows; `name`: for a name.
    """
    known = {
        key: value
        for key, value in task.inputs.items()
        if task.unknown.isdisjoint(_CHECKED_WITH.get(key, ()))
    }
    unknown = dict.fromkeys({"service_name", "runtime"} & task.unknown, name)
    if known.get("container"):
        unknown.pop("runtime", None)
    has_model = "model" in task.artifacts or known.get("storage_uri") or known.get("container")
    may_have_one = not has_model and _PLACES & task.unknown
    if may_have_one or "storage_uri" in task.unknown:
        unknown["storage_uri"] = place
    return known | unknown
