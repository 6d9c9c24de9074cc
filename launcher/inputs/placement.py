"""Where pods may run and with what: resources, tolerations, affinity, security.

An input overrides what the author set on the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers

GPU_RESOURCE, MIG_RESOURCE = "nvidia.com/gpu", "nvidia.com/mig-"
_NATIVE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+")
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


def gpu_resource(name: str, value: Any, example: str = GPU_RESOURCE) -> str:
    """Read the name of a device's resource; `example`: one of them, for messages."""
    resource = readers.text(name, value)
    if "/" not in k8s.qualified_key(name, resource):
        raise InputError(f"{name} is {resource!r}; write it with its domain: {example}.")
    return resource_name(name, resource)


def resource_name(name: str, resource: str) -> str:
    """Return the name of a resource that a container can be given: a native or an extended one."""
    domain = k8s.qualified_key(name, resource).rpartition("/")[0]
    if (not domain and not _NATIVE.fullmatch(resource)) or re.search(
        r"^requests\.|(^|\.)kubernetes\.io$", domain
    ):
        raise InputError(
            f"{name} is {resource!r}, which no node has; an accelerator is named with the domain "
            f"of its vendor: {GPU_RESOURCE}."
        )
    return resource


def resources(
    of_task: Mapping[str, Mapping[str, str]],
    explicit: Mapping[str, str],
    gpu_resource: str,
    gpus: int,
) -> dict[str, dict[str, str]]:
    """Return a container's `resources`.

    `of_task`: the task's `requests` and `limits`. `explicit`: `cpu` and `memory` as quantities,
    empty where unset; each becomes both the request and the limit. `gpus`: how many of it a pod
    gets; 0 keeps the task's.
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
    parts = {"requests": requests, "limits": limits}
    return {name: part for name, part in parts.items() if part}


def accelerators(resources: Mapping[str, Mapping[str, str]]) -> int:
    """Return how many accelerators a container's `resources` have, of any kind."""
    amounts = {**resources.get("requests", {}), **resources.get("limits", {})}
    return sum(
        readers.integer(f"the task's {name}", amount)
        for name, amount in amounts.items()
        if "/" in name
    )


def tolerations(name: str, value: Any) -> tuple[dict[str, Any], ...]:
    """Read a pod's `tolerations`."""
    return tuple(
        _toleration(f"{name}[{i}]", item)
        for i, item in enumerate(readers.objects(name, value, _TOLERATION_FIELDS))
    )


def merged_tolerations(
    given: Iterable[dict[str, Any]], of_task: Iterable[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """Return the task's tolerations and the input's, which replace those of the same taint."""
    given = tuple(given)
    replaced = {_taint(item) for item in given}
    return (*(item for item in of_task if _taint(item) not in replaced), *given)


def _taint(toleration: Mapping[str, Any]) -> tuple[Any, Any]:
    return toleration.get("key", ""), toleration.get("effect", "")


def _toleration(name: str, item: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {
        key: readers.rendered(f"{name}.{key}", value)
        for key, value in item.items()
        if key != "tolerationSeconds"
    }
    if read.get("key"):
        k8s.qualified_key(name, read["key"])
    k8s.label_value(f"{name}.value", read.get("value", ""))
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
        seconds = readers.integer(f"{name}.tolerationSeconds", item["tolerationSeconds"])
        read["tolerationSeconds"] = seconds
    return read


def affinity(name: str, value: Any) -> dict[str, Any]:
    """Read a pod's `affinity`."""
    given = readers.known_fields(name, value, _AFFINITY_FIELDS)
    for key in given:
        readers.mapping(f"{name}.{key}", given[key])
    return given


def security_context(name: str, value: Any) -> dict[str, Any]:
    """Read changes to a pod's `securityContext`; null removes a default."""
    return readers.known_fields(name, value, _POD_SECURITY_FIELDS)
