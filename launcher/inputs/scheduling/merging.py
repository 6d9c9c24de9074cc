"""What `placement` means for the other inputs: GPUs, affinity, environment. No I/O."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, placement
from kfp_pytorch.launcher.inputs.scheduling.place import Placement

PRODUCT_LABEL = "nvidia.com/gpu.product"


def gpus(asked: Placement, number: int, resource: str) -> tuple[int, str]:
    """Return how many accelerators of which resource each pod gets.

    `number`, `resource`: the inputs gpus_per_node (0 where it is unset) and gpu_resource. Raises
    InputError: they contradict the placement.
    """
    other = resource != placement.GPU_RESOURCE
    if asked.mig:
        if number or other:
            what = f"gpus_per_node is {number}" if number else f"gpu_resource is {resource!r}"
            raise InputError(
                f"{what}, and placement has the MIG profile {asked.mig!r}; a pod has whole GPUs or "
                "one MIG device. Drop one."
            )
        return 1, f"{placement.MIG_RESOURCE}{asked.mig.replace('+', '.')}"
    if asked.gpus and number and asked.gpus != number:
        raise InputError(
            f"gpus_per_node is {number} and placement.gpus is {asked.gpus}; give it once."
        )
    if asked.gpu_resource and other and asked.gpu_resource != resource:
        raise InputError(
            f"gpu_resource is {resource!r} and placement.gpu_resource is {asked.gpu_resource!r}; "
            "give it once."
        )
    return asked.gpus or number, asked.gpu_resource or resource


def node_affinity(asked: Placement, affinity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the affinity with the products of GPUs demanded of a node, besides what it demands."""
    merged = copy.deepcopy(dict(affinity))
    if not asked.gpu_products:
        return merged
    demand = {"key": PRODUCT_LABEL, "operator": "In", "values": list(asked.gpu_products)}
    nodes = merged["nodeAffinity"] = dict(merged.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = nodes[key] = dict(nodes.get(key) or {})
    # A node need fit only one of the terms.
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), demand]}
        for term in terms
    ]
    return merged


def with_rdma(
    asked: Placement, resources: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return a container's `resources` with the RDMA devices of each pod."""
    merged = {part: dict(amounts) for part, amounts in resources.items()}
    if asked.rdma:
        merged.setdefault("limits", {})[asked.rdma.resource] = str(asked.rdma.count)
    return merged


def without_rdma(
    asked: Placement, resources: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, str]]:
    """Return a container's `resources` without them: they are no accelerators."""
    other = asked.rdma.resource if asked.rdma else ""
    return {
        part: {name: amount for name, amount in amounts.items() if name != other}
        for part, amounts in resources.items()
    }


def check(
    asked: Placement,
    resources: Mapping[str, Mapping[str, str]],
    *,
    gpus: int,
    gpu_resource: str,
    processes: str,
    shm_size: str,
) -> None:
    """Refuse a placement that contradicts the other inputs.

    `gpus`: accelerators of a pod, of any kind. `processes`: nproc_per_node as it was given.
    """
    if asked.gpu_products and not gpus:
        raise InputError(
            "placement has gpu_products and the job has no GPU; its pods would only keep others "
            "from those nodes. Add gpus."
        )
    if asked.gpu_products and not gpu_resource.startswith("nvidia.com/"):
        raise InputError(
            f"placement has gpu_products, which are told by the label {PRODUCT_LABEL}, and "
            f"gpu_resource is {gpu_resource!r}; use node_selector or affinity with its label."
        )
    if asked.mig and processes.isdecimal() and int(processes) > 1:
        raise InputError(
            f"nproc_per_node is {processes} and placement has a MIG device; CUDA gives a process "
            "one, so a pod has one process. Ask for more nodes."
        )
    devices = _of_mig(resources)
    if devices > 1 and not processes:
        raise InputError(
            f"A pod has {devices} MIG devices, and nproc_per_node is not set; CUDA gives a process "
            "one. Ask for one a pod, and for more nodes; where the program itself gives each "
            "process its device (CUDA_VISIBLE_DEVICES), set nproc_per_node."
        )
    if asked.host_ipc and shm_size not in ("", "0"):
        raise InputError(
            f"shm_size is {shm_size!r} and placement has host_ipc, with which /dev/shm is the "
            "node's; drop one."
        )
    if asked.cpu_pinning:
        _check_pinning(resources)


def _of_mig(resources: Mapping[str, Mapping[str, str]]) -> int:
    kept = {
        part: {name: of for name, of in amounts.items() if name.startswith(placement.MIG_RESOURCE)}
        for part, amounts in resources.items()
    }
    return placement.accelerators(kept)


def _check_pinning(resources: Mapping[str, Mapping[str, str]]) -> None:
    """The static CPU manager pins pods of class Guaranteed with whole CPUs.

    https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/
    """
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for name in ("cpu", "memory"):
        limit = limits.get(name, "")
        if not limit or requests.get(name, limit) != limit:
            raise InputError(
                f"placement has cpu_pinning, and the request and the limit of {name} are "
                f"{requests.get(name, limit) or 'unset'} and {limit or 'unset'}; it needs both, "
                f"and equal. Set the input {name}."
            )
    cpus = k8s.quantity_value(limits["cpu"]) or 0.0
    if not cpus.is_integer():
        raise InputError(
            f"placement has cpu_pinning and cpu is {limits['cpu']!r}; it needs whole CPUs."
        )
