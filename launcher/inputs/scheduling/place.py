"""The input `placement`: on which devices and nodes a job's pods run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, placement, readers

# https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-mig.html
_MIG = re.compile(r"\d+g\.\d+gb(\+[a-z]+)*")
# The labels of nodes that say in which domain one is. There is no rule for racks.
DOMAINS = {
    "node": "kubernetes.io/hostname",
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
    "rack": "topology.kubernetes.io/rack",
    "nvlink": "nvidia.com/gpu.clique",
}
RDMA_RESOURCE = "rdma/rdma_shared_device_a"
EFA_RESOURCE = "vpc.amazonaws.com/efa"


@dataclass(frozen=True)
class Domain:
    """A domain of nodes that pods are to share, or to be spread over."""

    label: str = ""  # the label of nodes; nodes with one value of it are one domain
    required: bool = True  # whether pods rather wait than run elsewhere


@dataclass(frozen=True)
class Rdma:
    """The RDMA devices of each pod."""

    resource: str = ""  # the resource of the cluster's device plugin
    count: int = 1
    hca: str = ""  # NCCL_IB_HCA; empty for what NCCL finds
    interface: str = ""  # NCCL_SOCKET_IFNAME; empty for what NCCL finds
    ipc_lock: bool = True  # whether the container gets the capability IPC_LOCK

    @property
    def environment(self) -> dict[str, str]:
        """Return NCCL's variables: without the device it fails, and does not fall back to TCP."""
        efa = self.resource == EFA_RESOURCE
        values = {
            "FI_PROVIDER": "efa" if efa else "",
            "NCCL_NET": "" if efa else "IB",
            "NCCL_IB_HCA": self.hca,
            "NCCL_SOCKET_IFNAME": self.interface,
        }
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class Placement:
    """What the input `placement` says.

    Attributes:
        gpus: Whole GPUs of each pod; 0 where it does not say.
        gpu_resource: Their resource; empty where it does not say.
        mig: The MIG profile of each pod's one device, as `3g.20gb`.
        gpu_products: Of which products they may be.
        tolerations: Taints that pods tolerate.
        same: The domain that all pods share, or None.
        spread: The domains that pods are spread over, or None.
        pack: Whether nodes are preferred that run pods of the job.
        rdma: The RDMA devices of each pod, or None.
        host_ipc: Whether pods have the node's IPC namespace, and so its /dev/shm.
        cpu_pinning: Whether the kubelet's static CPU manager is to give pods CPUs of their own.
    """

    gpus: int = 0
    gpu_resource: str = ""
    mig: str = ""
    gpu_products: tuple[str, ...] = ()
    tolerations: tuple[dict[str, Any], ...] = ()
    same: Domain | None = None
    spread: Domain | None = None
    pack: bool = False
    rdma: Rdma | None = None
    host_ipc: bool = False
    cpu_pinning: bool = False

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return self != Placement()


def domain_label(name: str, value: Any) -> str:
    """Read the label of a domain: one of DOMAINS by its name, or a label's key."""
    word = readers.text(name, value)
    if word in DOMAINS:
        return DOMAINS[word]
    if "/" not in word:
        raise InputError(
            f"{name} is {word!r}; it must be one of {', '.join(DOMAINS)}, or the label of nodes "
            "that says it, with its domain, as cloud.google.com/gce-topology-block."
        )
    return k8s.qualified_key(name, word)


def _domain(name: str, value: Any, *, required: bool) -> Domain | None:
    if readers.is_unset(value):
        return None
    item = {"domain": value} if isinstance(value, str) else value
    item = readers.known_fields(name, item, ("domain", "required"))
    must = item.get("required")
    return Domain(
        domain_label(f"{name}.domain", item.get("domain")),
        required if must is None else readers.boolean(f"{name}.required", must),
    )


def _rdma(name: str, value: Any) -> Rdma | None:
    if readers.is_unset(value):
        return None
    item = readers.known_fields(name, value, [field.name for field in fields(Rdma)])
    where = f"{name}.resource"
    resource = readers.text(where, item.get("resource"), RDMA_RESOURCE)
    if resource.startswith((placement.GPU_RESOURCE, placement.MIG_RESOURCE)):
        raise InputError(f"{where} is {resource!r}, which is a GPU; gpus and mig ask for these.")
    lock = item.get("ipc_lock")
    return Rdma(
        placement.gpu_resource(where, resource, RDMA_RESOURCE),
        readers.integer(f"{name}.count", item.get("count", 1), minimum=1, maximum=4096),
        readers.text(f"{name}.hca", item.get("hca")),
        readers.text(f"{name}.interface", item.get("interface")),
        True if lock is None else readers.boolean(f"{name}.ipc_lock", lock),
    )


def _mig(name: str, value: Any) -> str:
    profile = readers.text(name, value).removeprefix(placement.MIG_RESOURCE)
    if profile and not _MIG.fullmatch(profile):
        raise InputError(
            f"{name} is {profile!r}; a MIG profile is written as 3g.20gb or 1g.10gb+me. "
            "`nvidia-smi mig -lgip` lists those of a GPU."
        )
    return profile


def _resource(name: str, value: Any) -> str:
    return "" if readers.is_unset(value) else placement.gpu_resource(name, value)


def _products(name: str, value: Any) -> tuple[str, ...]:
    products = readers.strings(name, value)
    return tuple(k8s.label_value(f"{name}[{i}]", each) for i, each in enumerate(products))


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "gpus": partial(readers.integer, maximum=4096),
    "gpu_resource": _resource,
    "mig": _mig,
    "gpu_products": _products,
    "tolerations": placement.tolerations,
    "same": partial(_domain, required=True),
    "spread": partial(_domain, required=False),
    "pack": readers.boolean,
    "rdma": _rdma,
    "host_ipc": readers.boolean,
    "cpu_pinning": readers.boolean,
}


def _size(domain: Domain) -> int:
    """Return the place of a domain among those that lie in each other; -1 for any other."""
    nested = [DOMAINS[each] for each in ("node", "zone", "region")]
    return nested.index(domain.label) if domain.label in nested else -1


def read(name: str, value: Any) -> Placement:
    """Read the input `placement`; unset leaves everything to the other inputs."""
    if not isinstance(value, Mapping) and not readers.is_unset(value):
        raise InputError(f"{name} is {value!r}; write an object, such as gpus(8) returns.")
    given = readers.known_fields(name, value, tuple(_READERS))
    read = Placement(**{key: _READERS[key](f"{name}.{key}", item) for key, item in given.items()})
    if read.mig and (read.gpus or read.gpu_resource):
        raise InputError(
            f"{name} has the MIG profile {read.mig!r} and whole GPUs; a pod has one or the other."
        )
    if read.same and read.spread and read.same.label == read.spread.label:
        raise InputError(
            f"{name} has same and spread, both by {read.same.label}; pods cannot be in one and in "
            "several. Drop one, or spread them by a smaller domain."
        )
    if read.same and read.spread and read.same.required and read.spread.required:
        inner, outer = _size(read.same), _size(read.spread)
        if 0 <= inner < outer:
            raise InputError(
                f"{name} has same by {read.same.label} and spread by {read.spread.label}, which "
                "is larger; the second pod would never start. Drop one, or spread them by a "
                "smaller domain."
            )
    if read.pack and read.spread:
        raise InputError(f"{name} has pack and spread, which are the opposite; drop one.")
    return read
