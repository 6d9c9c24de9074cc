"""The one node of the cluster: this machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.registry import NODE
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.quantities import quantity

Object = dict[str, Any]

NODE_NAME = "local"
GPU = "nvidia.com/gpu"
_PODS = 110
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def gpus() -> list[int]:
    """The numbers of this machine's NVIDIA GPUs."""
    driver = Path("/proc/driver/nvidia/gpus")
    return list(range(len(list(driver.iterdir())))) if driver.is_dir() else []


def memory() -> int:
    """The memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def create(api: Api, gpu_count: int) -> None:
    """Create the node's object.

    Args:
        api: The cluster's objects.
        gpu_count: How many GPUs this machine has.
    """
    capacity = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory() // 1024}Ki",
        "pods": str(_PODS),
        **({GPU: str(gpu_count)} if gpu_count else {}),
    }
    now = objects.timestamp(api.clock())
    labels = {
        "kubernetes.io/hostname": NODE_NAME,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": _ARCHITECTURES.get(platform.machine(), platform.machine()),
    }
    meta = {"name": NODE_NAME, "labels": labels}
    node = api.create(NODE, {"metadata": meta, "spec": {}})
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    node["status"] = {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [ready],
        "addresses": [
            {"type": "InternalIP", "address": loopback.ADDRESS},
            {"type": "Hostname", "address": NODE_NAME},
        ],
    }
    api.update(NODE, node, subresource="status")


def requests(pod: Object) -> dict[str, float]:
    """What a pod asks for: the sum of its containers, or more if an init container needs more.

    Init containers that are sidecars run beside those that come later, and beside the containers.
    """
    spec = pod["spec"]
    total: dict[str, float] = {"pods": 1.0}
    peak: dict[str, float] = {}
    for container in spec.get("initContainers") or []:
        asked = _requests(container)
        for name, amount in asked.items():
            peak[name] = max(peak.get(name, 0.0), total.get(name, 0.0) + amount)
        if container.get("restartPolicy") == "Always":
            total = _sum(total, asked)
    for container in spec["containers"]:
        total = _sum(total, _requests(container))
    return {name: max(total.get(name, 0.0), peak.get(name, 0.0)) for name in {**total, **peak}}


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def gpu_request(pod: Object) -> int:
    """How many GPUs a pod asks for."""
    return int(requests(pod).get(GPU, 0.0))


def _requests(container: Object) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}
