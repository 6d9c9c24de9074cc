"""The one node of the cluster: this machine."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import NODE
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.quantities import quantity

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
    """Create the node's object."""
    capacity = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory() // 1024}Ki",
        "ephemeral-storage": f"{shutil.disk_usage('/').total // 1024}Ki",
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
    """What a pod requests of its node, itself included as one of `pods`."""
    return {"pods": 1.0, **total(pod, "requests")}


def gpu_request(pod: Object) -> int:
    """How many GPUs a pod requests."""
    return int(requests(pod).get(GPU, 0.0))


def total(pod: Object, group: str) -> dict[str, float]:
    """The resources of a pod: the sum of its containers, or more if an init container needs more.

    Init containers that are sidecars run beside those that come later, and beside the containers.
    """
    beside: dict[str, float] = {}
    peak: dict[str, float] = {}
    for container in pod["spec"].get("initContainers") or []:
        needed = _sum(beside, _amounts(container, group))
        peak = {name: max(peak.get(name, 0.0), amount) for name, amount in (peak | needed).items()}
        if container.get("restartPolicy") == "Always":
            beside = needed
    for container in pod["spec"]["containers"]:
        beside = _sum(beside, _amounts(container, group))
    return {name: max(beside.get(name, 0.0), peak.get(name, 0.0)) for name in {**beside, **peak}}


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _amounts(container: Object, group: str) -> dict[str, float]:
    resources = container.get("resources") or {}
    amounts = resources.get(group) or {}
    if group == "requests":
        amounts = {**(resources.get("limits") or {}), **amounts}
    return {name: quantity(amount) for name, amount in amounts.items()}
