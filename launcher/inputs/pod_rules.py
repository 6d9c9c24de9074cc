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
        _check_devices(where, readers.mapping(where, container.get("resources")))
        security = of_pod | _checked(f"{where}: securityContext", container.get("securityContext"))
        if security.get("runAsNonRoot") and security.get("runAsUser") == 0:
            raise InputError(
                f"{where} has runAsUser 0 with runAsNonRoot true, and would never start; give "
                "another user, or set run_as_root."
            )


def _check_devices(where: str, resources: Mapping[str, Any]) -> None:
    """Refuse resources that no node has, and devices that exclude each other.

    Each device plugin writes NVIDIA_VISIBLE_DEVICES, and one of several is lost:
    https://github.com/NVIDIA/k8s-device-plugin/issues/728
    """
    found = set()
    for part in ("limits", "requests"):
        for name, amount in readers.mapping(where, resources.get(part)).items():
            placement.resource_name(f"{where}: {part}", name)
            if name.startswith(_EXCLUSIVE) and str(amount).strip() not in ("", "0"):
                found.add(name)
    if len(found) > 1 and any(name.startswith(placement.MIG_RESOURCE) for name in found):
        raise InputError(
            f"{where} asks for {' and '.join(sorted(found))}; a container has whole GPUs or MIG "
            "devices of one profile, and would see one of these only. Drop one, wherever it is "
            "asked for: an input, a patch, the limits of the task or the manifest."
        )


def _checked(where: str, value: Any) -> dict[str, Any]:
    part = readers.mapping(where, value)
    for field in _RULES.keys() & part.keys():
        _RULES[field](f"{where}: {field}", part[field])
    return part
