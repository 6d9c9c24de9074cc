"""Where training pods may run and with what: resources, tolerations, affinity, security.

Each function merges an explicit input over what the author set on the task; the input wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers

GPU_RESOURCE = "nvidia.com/gpu"
_TOLERATION_FIELDS = ("key", "operator", "value", "effect", "tolerationSeconds")
_AFFINITY_FIELDS = ("nodeAffinity", "podAffinity", "podAntiAffinity")
_POD_SECURITY_FIELDS = (
    "runAsUser",
    "runAsGroup",
    "runAsNonRoot",
    "fsGroup",
    "fsGroupChangePolicy",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxOptions",
    "seLinuxChangePolicy",
    "seccompProfile",
    "appArmorProfile",
    "sysctls",
)


def gpu_resource(value: Any) -> str:
    """Read the name of an accelerator's resource; unset gives NVIDIA's.

    Raises:
        InputError: If no accelerator can be called so.
    """
    name = readers.text("gpu_resource", value, GPU_RESOURCE)
    if "/" not in readers.qualified_key("gpu_resource", name):
        raise InputError(f"gpu_resource is {name!r}; write it with its domain: {GPU_RESOURCE}.")
    return name


def resources(
    of_task: Mapping[str, Mapping[str, str]],
    explicit: Mapping[str, str],
    gpu_resource: str,
    gpus: int,
) -> tuple[dict[str, dict[str, str]], int]:
    """Return a container's `resources` and the number of accelerators in it.

    Args:
        of_task: The task's `requests` and `limits`.
        explicit: `cpu` and `memory` as quantities, empty where unset; each becomes both the
            request and the limit.
        gpu_resource: The name of the accelerator's resource.
        gpus: How many of it a node gets; 0 keeps the task's.

    Raises:
        InputError: If the task's number of accelerators is no whole number.
    """
    requests = dict(of_task.get("requests", {}))
    limits = dict(of_task.get("limits", {}))
    for name, amount in explicit.items():
        if amount:
            requests[name] = limits[name] = amount
    if gpus:
        for part in (requests, limits):
            for name in [name for name in part if "/" in name]:
                del part[name]
        limits[gpu_resource] = str(gpus)
    found = {name: amount for name, amount in (requests | limits).items() if "/" in name}
    total = sum(
        readers.integer(f"the task's {name}", amount, default=0) for name, amount in found.items()
    )
    parts = {"requests": requests, "limits": limits}
    return {name: part for name, part in parts.items() if part}, total


def node_selector(explicit: Any, of_task: Mapping[str, str]) -> dict[str, str]:
    """Return a pod's `nodeSelector`; an explicit label replaces the task's of the same key.

    Raises:
        InputError: If the input has a key or value that cannot be a label's.
    """
    return {**of_task, **readers.label_map("node_selector", explicit)}


def tolerations(explicit: Any, of_task: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return a pod's `tolerations`; an explicit one replaces the task's of the same taint.

    Raises:
        InputError: If the input has an unknown field, or a word that Kubernetes does not know.
    """
    given = [
        _toleration(f"tolerations[{i}]", item)
        for i, item in enumerate(readers.objects("tolerations", explicit, _TOLERATION_FIELDS))
    ]
    taken = {_taint(item) for item in given}
    return (*(item for item in of_task if _taint(item) not in taken), *given)


def _taint(toleration: Mapping[str, Any]) -> tuple[Any, Any]:
    return toleration.get("key", ""), toleration.get("effect", "")


def _toleration(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {
        key: readers.rendered(f"{name}.{key}", value)
        for key, value in item.items()
        if key != "tolerationSeconds"
    }
    if read.get("key"):
        readers.qualified_key(name, read["key"])
    readers.label_value(f"{name}.value", read.get("value", ""))
    operator = read.get("operator", "Equal")
    if operator not in ("Equal", "Exists"):
        raise InputError(f"{name}.operator is {operator!r}; it must be Equal or Exists.")
    if operator == "Exists" and read.get("value"):
        raise InputError(f"{name} has a value; with operator Exists it may have none.")
    if operator == "Equal" and not read.get("key"):
        raise InputError(f"{name} has no key; only operator Exists may be without one.")
    if read.get("effect", "") not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise InputError(
            f"{name}.effect is {read['effect']!r}; it must be NoSchedule, PreferNoSchedule or "
            "NoExecute."
        )
    if item.get("tolerationSeconds") is not None and read.get("effect") != "NoExecute":
        raise InputError(
            f"{name} has tolerationSeconds; it needs the effect NoExecute, the only one that "
            "takes a running pod off its node."
        )
    if "tolerationSeconds" in item:
        read["tolerationSeconds"] = readers.integer(
            f"{name}.tolerationSeconds", item["tolerationSeconds"], default=0
        )
    return read


def affinity(explicit: Any, of_task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's `affinity`; an explicit kind of affinity replaces the task's of that kind.

    Raises:
        InputError: If the input has an unknown field.
    """
    given = readers.known_fields("affinity", explicit, _AFFINITY_FIELDS)
    for key in given:
        readers.mapping(f"affinity.{key}", given[key])
    return {**of_task, **given}


def security_context(explicit: Any) -> dict[str, Any]:
    """Read changes to a pod's `securityContext`; null takes a default away.

    Raises:
        InputError: If the input has an unknown field.
    """
    return readers.known_fields("security_context", explicit, _POD_SECURITY_FIELDS)
