"""The input `scheduling`: which scheduler or queue starts the job's pods.

Each scheduler's names are its own:
https://kueue.sigs.k8s.io/docs/tasks/run/kubeflow/pytorchjobs/
https://github.com/volcano-sh/volcano/tree/v1.12.0/staging/src/volcano.sh/apis/pkg/apis/scheduling
https://github.com/kubernetes-sigs/scheduler-plugins/tree/v0.31.8/pkg/coscheduling
https://github.com/NVIDIA/KAI-Scheduler/tree/v0.12.0/docs
https://yunikorn.apache.org/docs/user_guide/gang_scheduling
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers

KUEUE, VOLCANO, COSCHEDULING, KAI, YUNIKORN = "kueue", "volcano", "coscheduling", "kai", "yunikorn"
SCHEDULERS = (KUEUE, VOLCANO, COSCHEDULING, KAI, YUNIKORN)
# The schedulerName of the pods. Kueue is none: it lets a whole job start, and another places it.
SCHEDULER_NAMES = {
    VOLCANO: "volcano",
    COSCHEDULING: "scheduler-plugins-scheduler",
    KAI: "kai-scheduler",
    YUNIKORN: "yunikorn",
}
# What a scheduler takes besides `scheduler` and `priority_class`.
_TAKES = {
    "": (),
    KUEUE: ("queue", "workload_priority_class", "topology_aware"),
    VOLCANO: ("queue", "gang", "min_member", "scheduler_name"),
    COSCHEDULING: ("min_member", "schedule_timeout", "scheduler_name"),
    KAI: ("queue", "gang", "min_member", "topology", "scheduler_name"),
    YUNIKORN: ("queue", "gang", "min_member", "schedule_timeout", "gang_style", "scheduler_name"),
}
# The labels and annotations that a scheduler reads, by how their keys begin.
PREFIXES = {
    KUEUE: ("kueue.x-k8s.io/",),
    VOLCANO: ("scheduling.volcano.sh/", "volcano.sh/", "scheduling.k8s.io/group-name"),
    COSCHEDULING: ("scheduling.x-k8s.io/", "pod-group.scheduling.sigs.k8s.io"),
    KAI: ("kai.scheduler/",),
    YUNIKORN: ("yunikorn.apache.org/",),
}
# What a kind of job has, or its runtime, and no scheduler.
_POLICIES = ("success_policy", "pod_failure_policy")


@dataclass(frozen=True)
class Scheduling:
    """What the input `scheduling` says.

    Attributes:
        scheduler: One of SCHEDULERS; empty for the cluster's own.
        queue: The queue of that scheduler; of Kueue, a LocalQueue.
        priority_class: The PriorityClass of the pods.
        workload_priority_class: Kueue's WorkloadPriorityClass.
        gang: Whether pods start together or not at all.
        min_member: How many must; 0 for all.
        schedule_timeout: Seconds that a part of them may hold resources; 0 for the scheduler's own.
        gang_style: What YuniKorn does then: Hard fails the job, Soft starts pods one by one.
        scheduler_name: The schedulerName of the pods; empty for the scheduler's usual one.
        topology: The name of KAI's Topology that `same` of the placement is about.
        topology_aware: Whether Kueue decides about `same` of the placement.
    """

    scheduler: str = ""
    queue: str = ""
    priority_class: str = ""
    workload_priority_class: str = ""
    gang: bool = True
    min_member: int = 0
    schedule_timeout: int = 0
    gang_style: str = "Hard"
    scheduler_name: str = ""
    topology: str = ""
    topology_aware: bool = False

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.scheduler or self.priority_class)

    @property
    def pods_scheduler(self) -> str:
        """The schedulerName of the pods; empty for the cluster's default."""
        return self.scheduler_name or SCHEDULER_NAMES.get(self.scheduler, "")


def _label(name: str, value: Any) -> str:
    return k8s.label_value(name, readers.text(name, value))


def _on(name: str, value: Any) -> bool:
    return readers.is_unset(value) or readers.boolean(name, value)


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "queue": _label,
    "priority_class": k8s.dns_subdomain,
    "workload_priority_class": _label,
    "gang": _on,
    "min_member": partial(readers.integer, maximum=10_000),
    "schedule_timeout": readers.integer,
    "gang_style": readers.one_of("Hard", "Soft"),
    "scheduler_name": k8s.dns_subdomain,
    "topology": k8s.dns_subdomain,
    "topology_aware": readers.boolean,
}


def read(name: str, value: Any) -> Scheduling:
    """Read the input `scheduling`; unset leaves everything to the cluster."""
    if not isinstance(value, Mapping) and not readers.is_unset(value):
        raise InputError(f"{name} is {value!r}; write an object, such as kueue('team-a') returns.")
    given = readers.mapping(name, value)
    for policy in _POLICIES:
        if policy in given:
            raise InputError(
                f"{name} has {policy!r}, which is no scheduler's: a TFJob has a success policy, by "
                "the input success_policy of kubeflow_job; a TrainJob has what the JobSet of its "
                "runtime says (spec.template.spec). No other kind of job has either."
            )
    read_as = readers.known_fields(name, given, [field.name for field in fields(Scheduling)])
    scheduler = _scheduler(name, read_as.pop("scheduler", ""))
    _check_fields(name, scheduler, read_as)
    read = Scheduling(
        scheduler,
        **{key: _READERS[key](f"{name}.{key}", item) for key, item in read_as.items()},
    )
    if scheduler in (KUEUE, VOLCANO, KAI):
        k8s.dns_subdomain(f"{name}.queue", read.queue)
        k8s.dns_subdomain(f"{name}.workload_priority_class", read.workload_priority_class)
    if scheduler == KUEUE and not read.queue:
        raise InputError(
            f"{name} has no queue; Kueue leaves such a job alone. Give the name of a LocalQueue "
            "(kubectl get localqueues)."
        )
    if not read.gang and read.min_member:
        raise InputError(f"{name} has min_member {read.min_member} and gang false; drop one.")
    return read


def _scheduler(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)) or "," in str(value):
        raise InputError(
            f"{name}.scheduler is {value!r}; a job has one: Kueue lets whole jobs start, and "
            "Volcano, coscheduling, KAI or YuniKorn place their pods with queues of their own."
        )
    return readers.choice(f"{name}.scheduler", value, ("", *SCHEDULERS))


def _check_fields(name: str, scheduler: str, given: Mapping[str, Any]) -> None:
    taken = ("priority_class", *_TAKES[scheduler])
    for key, value in given.items():
        if key in taken or readers.is_unset(value):
            continue
        if not scheduler:
            can = ", ".join(each for each in SCHEDULERS if key in _TAKES[each])
            raise InputError(f"{name} has {key!r} and no scheduler; give one of {can}.")
        raise InputError(
            f"{name} has {key!r}, which the scheduler {scheduler!r} does not take; it takes "
            f"{', '.join(taken)}."
        )
