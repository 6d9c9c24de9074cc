"""Rules of Kubernetes for a pod whose breach is seen late: when its pods are made, or on a node.

https://github.com/kubernetes/kubernetes/blob/v1.32.0/pkg/apis/core/validation/validation.go
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, placement, readers

# Of a pod, a container, a port or a security context, by field.
_RULES: dict[str, Callable[[str, Any], Any]] = {
    "activeDeadlineSeconds": partial(readers.integer, minimum=1),
    "containerPort": partial(readers.integer, minimum=1, maximum=65535),
    "dnsPolicy": readers.one_of("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
    "fsGroupChangePolicy": readers.one_of("Always", "OnRootMismatch"),
    "hostPort": partial(readers.integer, maximum=65535),
    "image": k8s.image,
    "preemptionPolicy": readers.one_of("PreemptLowerPriority", "Never"),
    "priorityClassName": k8s.dns_subdomain,
    "protocol": readers.one_of("TCP", "UDP", "SCTP"),
    "runtimeClassName": k8s.dns_subdomain,
    "schedulerName": k8s.dns_subdomain,
    "serviceAccountName": k8s.dns_subdomain,
    "supplementalGroupsPolicy": readers.one_of("Merge", "Strict"),
    "terminationMessagePolicy": readers.one_of("File", "FallbackToLogsOnError"),
}

# Besides these, a plugin that shares GPUs has nvidia.com/gpu.shared.
_EXCLUSIVE = (placement.GPU_RESOURCE, placement.MIG_RESOURCE)


def check(spec: dict[str, Any]) -> None:
    """Refuse a pod's spec that breaks one of the rules; its lists are lists of objects."""
    of_pod = _checked("The pod's securityContext", _checked("The pod", spec).get("securityContext"))
    for container in (*spec.get("containers", []), *spec.get("initContainers", [])):
        where = f"The container {container['name']!r}"
        _checked(where, container)
        for port in container.get("ports", []):
            _checked(f"{where}: a port", port)
        _check_resources(where, readers.mapping(where, container.get("resources")))
        security = of_pod | _checked(f"{where}: securityContext", container.get("securityContext"))
        if security.get("runAsNonRoot") and security.get("runAsUser") == 0:
            raise InputError(
                f"{where} has runAsUser 0 with runAsNonRoot true, and would never start; give "
                "another user, or set run_as_root."
            )


def _check_resources(where: str, resources: Mapping[str, Any]) -> None:
    """Refuse resources that no node has, requests that no limit allows, devices of two kinds.

    Each device plugin writes NVIDIA_VISIBLE_DEVICES, and one of several is lost:
    https://github.com/NVIDIA/k8s-device-plugin/issues/728
    """
    limits, requests = (
        {name: _quantity(f"{where}: {part}", name, amount) for name, amount in amounts.items()}
        for part in ("limits", "requests")
        for amounts in [readers.mapping(where, resources.get(part))]
    )
    found = {name for name, amount in (limits | requests).items() if amount}
    exclusive = sorted(name for name in found if name.startswith(_EXCLUSIVE))
    if len(exclusive) > 1 and any(name.startswith(placement.MIG_RESOURCE) for name in exclusive):
        raise InputError(
            f"{where} asks for {' and '.join(exclusive)}; a container has whole GPUs or MIG "
            "devices of one profile, and would see one of these only. Drop one, wherever it is "
            "asked for: an input, a patch, the limits of the task or the manifest."
        )
    for name, amount in requests.items():
        device, limit = "/" in name or name.startswith("hugepages-"), limits.get(name)
        if (device and amount != limit) or (limit is not None and amount > limit):
            raise InputError(
                f"{where} requests {amount:g} of {name}, and its limit is "
                f"{'unset' if limit is None else f'{limit:g}'}; a request is at most the limit, "
                "and of a device just that. Give the limit alone."
            )


def _quantity(where: str, name: str, written: Any) -> float:
    placement.resource_name(where, name)
    amount = k8s.quantity_value(readers.rendered(f"{where}[{name!r}]", written))
    if amount is None or ("/" in name and not amount.is_integer()):
        kind = "whole number, 0 or more" if "/" in name else "quantity, such as 500m or 4Gi"
        raise InputError(f"{where}[{name!r}] is {written!r}; it must be a {kind}.")
    return amount


def _checked(where: str, value: Any) -> dict[str, Any]:
    part = readers.mapping(where, value)
    for field in _RULES.keys() & part.keys():
        _RULES[field](f"{where}: {field}", part[field])
    return part
