"""What the inputs `scheduling` and `placement` of a job may be given: functions that return them.

Plain objects, which a pipeline's parameter or a JSON file may hold as well. `placement` combines
what several functions return; each scheduler's function returns the whole of `scheduling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Placement = dict[str, Any]
Scheduling = dict[str, Any]
Toleration = Mapping[str, Any]


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ("", None, 0, [], ())}


def kueue(
    queue: str,
    *,
    priority: str = "",
    priority_class: str = "",
    topology_aware: bool = False,
) -> Scheduling:
    """Wait in a queue of Kueue.

    Args:
        queue: The LocalQueue of the job's namespace.
        priority: The WorkloadPriorityClass, by which jobs wait; empty for the queue's own.
        priority_class: The PriorityClass of the pods.
        topology_aware: Whether Kueue keeps the pods in the domain of `same_rack` and the like; its
            queue must have a topology.

    Returns:
        The input `scheduling`.
    """
    return _given(
        scheduler="kueue",
        queue=queue,
        workload_priority_class=priority,
        priority_class=priority_class,
    ) | ({"topology_aware": True} if topology_aware else {})


def volcano(
    queue: str = "",
    *,
    priority_class: str = "",
    gang: bool = True,
    min_member: int = 0,
    scheduler_name: str = "",
) -> Scheduling:
    """Have Volcano place the pods.

    Args:
        queue: Its Queue; empty for `default`.
        priority_class: The PriorityClass of the pods and of the gang.
        gang: Whether pods start together or not at all.
        min_member: How many pods must; 0 for all.
        scheduler_name: The pods' schedulerName; empty for `volcano`.

    Returns:
        The input `scheduling`.
    """
    return _with_gang("volcano", gang, min_member) | _given(
        queue=queue, priority_class=priority_class, scheduler_name=scheduler_name
    )


def coscheduling(
    *,
    priority_class: str = "",
    min_member: int = 0,
    schedule_timeout: int = 0,
    scheduler_name: str = "",
) -> Scheduling:
    """Have the scheduler-plugins' coscheduling start the pods together.

    Args:
        priority_class: The PriorityClass of the pods.
        min_member: How many pods must start together; 0 for all.
        schedule_timeout: Seconds that a part of the pods may hold nodes; 0 for the scheduler's 60.
        scheduler_name: The pods' schedulerName; empty for `scheduler-plugins-scheduler`. Where the
            plugin is in the cluster's own scheduler: `default-scheduler`.

    Returns:
        The input `scheduling`.
    """
    return _given(
        scheduler="coscheduling",
        priority_class=priority_class,
        min_member=min_member,
        schedule_timeout=schedule_timeout,
        scheduler_name=scheduler_name,
    )


def kai(
    queue: str = "",
    *,
    priority_class: str = "",
    gang: bool = True,
    min_member: int = 0,
    topology: str = "",
    scheduler_name: str = "",
) -> Scheduling:
    """Have the KAI scheduler place the pods.

    Args:
        queue: Its Queue; empty for `default-queue`.
        priority_class: The PriorityClass of the pods; KAI brings `train`, which may be preempted.
        gang: Whether pods start together or not at all.
        min_member: How many pods must; 0 for all.
        topology: KAI's Topology that `same_rack` and the like are about; empty for an affinity.
        scheduler_name: The pods' schedulerName; empty for `kai-scheduler`.

    Returns:
        The input `scheduling`.
    """
    return _with_gang("kai", gang, min_member) | _given(
        queue=queue,
        priority_class=priority_class,
        topology=topology,
        scheduler_name=scheduler_name,
    )


def yunikorn(
    queue: str = "",
    *,
    priority_class: str = "",
    gang: bool = True,
    min_member: int = 0,
    schedule_timeout: int = 0,
    gang_style: Literal["Hard", "Soft"] = "Hard",
    scheduler_name: str = "",
) -> Scheduling:
    """Have Apache YuniKorn place the pods.

    Args:
        queue: Its queue with all levels, as `root.team-a`.
        priority_class: The PriorityClass of the pods.
        gang: Whether pods start together or not at all; the pods must request something.
        min_member: How many pods must; 0 for all.
        schedule_timeout: Seconds that a part of the pods may hold places; 0 for YuniKorn's 900.
        gang_style: What happens then: `Hard` fails, `Soft` starts the pods one by one.
        scheduler_name: The pods' schedulerName; empty for `yunikorn`.

    Returns:
        The input `scheduling`.
    """
    style = {"gang_style": gang_style} if gang_style != "Hard" else {}
    return (
        _with_gang("yunikorn", gang, min_member)
        | style
        | _given(
            queue=queue,
            priority_class=priority_class,
            schedule_timeout=schedule_timeout,
            scheduler_name=scheduler_name,
        )
    )


def priority(priority_class: str) -> Scheduling:
    """Give the pods a PriorityClass, and leave them to the cluster's own scheduler.

    Args:
        priority_class: Its name.

    Returns:
        The input `scheduling`.
    """
    return {"priority_class": priority_class}


def _with_gang(scheduler: str, gang: bool, min_member: int) -> Scheduling:
    return (
        {"scheduler": scheduler} | ({} if gang else {"gang": False}) | _given(min_member=min_member)
    )


def gpus(count: int, *, product: Sequence[str] = (), resource: str = "") -> Placement:
    """Ask for whole GPUs.

    Args:
        count: How many each pod gets.
        product: Of which products they may be, by the label nvidia.com/gpu.product, such as
            `NVIDIA-H100-80GB-HBM3`; empty for any.
        resource: Their resource; empty for `nvidia.com/gpu`.

    Returns:
        A part of the input `placement`.
    """
    return {"gpus": count} | _given(gpu_products=list(product), gpu_resource=resource)


def mig(profile: str, *, product: Sequence[str] = ()) -> Placement:
    """Ask for one MIG device a pod.

    Args:
        profile: Its profile, as `3g.20gb` or `1g.10gb+me`.
        product: As of `gpus`.

    Returns:
        A part of the input `placement`.

    Raises:
        ValueError: No profile is given.
    """
    if not profile:
        raise ValueError("mig: profile is empty; give one, such as 3g.20gb.")
    return {"mig": profile} | _given(gpu_products=list(product))


def same(domain: str, *, required: bool = True) -> Placement:
    """Run all pods in one domain of nodes.

    Args:
        domain: The label of nodes that says in which domain one is, or `node`, `zone`, `region`,
            `rack` or `nvlink`.
        required: Whether pods rather wait than run elsewhere.

    Returns:
        A part of the input `placement`.
    """
    return {"same": {"domain": domain, "required": required}}


def same_zone(*, required: bool = True) -> Placement:
    """Run all pods in one zone, by the label topology.kubernetes.io/zone.

    Args:
        required: As of `same`.

    Returns:
        A part of the input `placement`.
    """
    return same("zone", required=required)


def same_rack(label: str = "rack", *, required: bool = True) -> Placement:
    """Run all pods in one rack.

    Args:
        label: The label of nodes that says their rack, which differs from cluster to cluster; by
            default topology.kubernetes.io/rack.
        required: As of `same`.

    Returns:
        A part of the input `placement`.
    """
    return same(label, required=required)


def same_nvlink_domain(*, required: bool = True) -> Placement:
    """Run all pods in one NVLink domain (as of a GB200 NVL72), by the label nvidia.com/gpu.clique.

    Args:
        required: As of `same`.

    Returns:
        A part of the input `placement`.
    """
    return same("nvlink", required=required)


def spread(over: str = "node", *, required: bool = False) -> Placement:
    """Run pods in several domains.

    Args:
        over: As the domain of `same`.
        required: Whether a pod rather waits than shares a domain with another of the job.

    Returns:
        A part of the input `placement`.
    """
    return {"spread": {"domain": over, "required": required}}


def pack() -> Placement:
    """Prefer nodes that run pods of the job already.

    Returns:
        A part of the input `placement`.
    """
    return {"pack": True}


def rdma(
    resource: str = "",
    count: int = 1,
    *,
    hca: str = "",
    interface: str = "",
    ipc_lock: bool = True,
) -> Placement:
    """Ask for RDMA devices, InfiniBand or RoCE, and have NCCL use nothing else between nodes.

    Args:
        resource: The resource of the cluster's device plugin; empty for
            `rdma/rdma_shared_device_a`. With `vpc.amazonaws.com/efa` libfabric is used.
        count: How many each pod gets.
        hca: NCCL_IB_HCA, such as `mlx5`; empty for all that NCCL finds.
        interface: NCCL_SOCKET_IFNAME, for the start of NCCL; empty for what it finds.
        ipc_lock: Whether the container gets the capability IPC_LOCK, to register memory with the
            device. Namespaces with the Pod Security Standard baseline or restricted refuse it.

    Returns:
        A part of the input `placement`.
    """
    found = _given(resource=resource, hca=hca, interface=interface) | {"count": count}
    return {"rdma": found if ipc_lock else found | {"ipc_lock": False}}


def tolerate(key: str, value: str = "", *, effect: str = "") -> Placement:
    """Let pods run on nodes with a taint.

    Args:
        key: The taint's key.
        value: Its value; empty for any.
        effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`; empty for all.

    Returns:
        A part of the input `placement`.
    """
    operator = "Equal" if value else "Exists"
    return {"tolerations": [_given(key=key, operator=operator, value=value, effect=effect)]}


def host_ipc() -> Placement:
    """Give pods the node's IPC namespace and /dev/shm.

    Returns:
        A part of the input `placement`.
    """
    return {"host_ipc": True}


def cpu_pinning() -> Placement:
    """Ask for CPUs of the pod's own.

    The kubelet's static CPU manager gives them to pods with whole CPUs whose requests are their
    limits: the inputs cpu and memory must be set.

    Returns:
        A part of the input `placement`.
    """
    return {"cpu_pinning": True}


def placement(*parts: Placement) -> Placement:
    """Combine parts of the input `placement`.

    Args:
        parts: What `gpus`, `same_rack` and the like return.

    Returns:
        The input `placement`.

    Raises:
        ValueError: Two parts say different things of the same.
        TypeError: A part is none.
    """
    whole: Placement = {}
    for part in parts:
        if not isinstance(part, dict):
            raise TypeError(
                f"placement: {part!r} is no part of one; give gpus(8), spread() or such."
            )
        for name, value in part.items():
            if name == "tolerations":
                value = [*whole.get(name, []), *value]
            elif whole.get(name, value) != value:
                raise ValueError(f"placement: {name} is both {whole[name]!r} and {value!r}.")
            whole[name] = value
    if "mig" in whole and "gpus" in whole:
        raise ValueError("placement: mig and gpus are both there; a pod has one or the other.")
    return whole
