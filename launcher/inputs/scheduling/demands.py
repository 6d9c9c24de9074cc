"""From `scheduling` and `placement` to what a job, its pods and its PodGroup must have. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.constants import STEP_ID_LABEL
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.place import Domain, Placement
from kfp_pytorch.launcher.inputs.scheduling.scheduler import (
    COSCHEDULING,
    KAI,
    KUEUE,
    VOLCANO,
    YUNIKORN,
    Scheduling,
)

KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
VOLCANO_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
COSCHEDULING_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
KAI_QUEUE_LABEL = "kai.scheduler/queue"
_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


@dataclass(frozen=True)
class Pods:
    """What a kind of job says of the pods of one job.

    Attributes:
        job_name: The job's whole name.
        labels: The launcher's labels, which the job and its pods have.
        roles: How many pods each role has; none has 0.
        least: How many the job can start with; 0 for all.
    """

    job_name: str
    labels: Mapping[str, str]
    roles: Mapping[str, int]
    least: int = 0

    @property
    def selector(self) -> dict[str, str]:
        """The labels that this job's pods have and no other's."""
        return {key: value for key, value in self.labels.items() if key == STEP_ID_LABEL}

    @property
    def members(self) -> int:
        """How many pods must start together."""
        return self.least or sum(self.roles.values())


@dataclass(frozen=True)
class Demands:
    """What a scheduler and a placement demand of a job and its pods; empty demands nothing.

    Attributes:
        job_labels: Labels of the job; so further on.
        scheduling_policy: `runPolicy.schedulingPolicy` of the Training Operator's kinds.
        pod_spec: Fields of the pods.
    """

    job_labels: dict[str, str] = field(default_factory=dict)
    job_annotations: dict[str, str] = field(default_factory=dict)
    pod_labels: dict[str, str] = field(default_factory=dict)
    pod_annotations: dict[str, str] = field(default_factory=dict)
    scheduling_policy: dict[str, Any] = field(default_factory=dict)
    pod_spec: dict[str, Any] = field(default_factory=dict)


def demands(scheduling: Scheduling, placement: Placement, pods: Pods) -> Demands:
    """Return what a job and its pods must have.

    Raises InputError: more pods are to start together than the job has, or the scheduler is to keep
    them in one domain and none is named.
    """
    has = sum(pods.roles.values())
    if scheduling.min_member > has:
        raise InputError(
            f"scheduling.min_member is {scheduling.min_member} and the job starts with {has} pods; "
            "the gang would never be complete."
        )
    if _of_scheduler(scheduling) and placement.same is None:
        asked = "topology_aware" if scheduling.topology_aware else "topology"
        raise InputError(
            f"scheduling.{asked} is set, and placement has no same, which it is about; add "
            f"same_rack() or the like to placement, or drop {asked}."
        )
    members = min_member(scheduling, pods.members)
    spec: dict[str, Any] = {
        "schedulerName": scheduling.pods_scheduler,
        "priorityClassName": scheduling.priority_class,
        "hostIPC": placement.host_ipc,
        "affinity": _pod_affinity(placement, pods, _of_scheduler(scheduling)),
    }
    of_scheduler = {
        KUEUE: _kueue,
        VOLCANO: _volcano,
        COSCHEDULING: _coscheduling,
        KAI: _kai,
        YUNIKORN: _yunikorn,
    }.get(scheduling.scheduler, _nothing)
    return Demands(
        **of_scheduler(scheduling, placement, pods, members),
        pod_spec={key: value for key, value in spec.items() if value},
    )


def min_member(scheduling: Scheduling, needed: int) -> int:
    """Return how many pods start together; `needed`: how many the job can start with."""
    return (scheduling.min_member or needed) if scheduling.gang else 1


def merged(where: str, given: Mapping[str, str], demanded: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations with the demanded ones.

    Raises InputError: one is given with another value.
    """
    for key, value in demanded.items():
        if given.get(key, value) != value:
            raise InputError(
                f"{where} has {key!r} with {given[key]!r}, and scheduling or placement sets it to "
                f"{value!r}; drop one."
            )
    return {**given, **demanded}


def _of_scheduler(scheduling: Scheduling) -> bool:
    """Whether the scheduler itself keeps pods in one domain."""
    return scheduling.topology_aware or bool(scheduling.topology)


def _pod_affinity(placement: Placement, pods: Pods, of_scheduler: bool) -> dict[str, Any]:
    """Demand other pods of the job near or far; a pod that is the first fits its own demand."""
    term = {"labelSelector": {"matchLabels": dict(pods.selector)}}
    near = [] if of_scheduler or placement.same is None else [placement.same]
    if placement.pack:
        near.append(Domain("kubernetes.io/hostname", required=False))
    parts = {
        "podAffinity": _terms(near, term),
        "podAntiAffinity": _terms([placement.spread] if placement.spread else [], term),
    }
    return {name: part for name, part in parts.items() if part}


def _terms(domains: list[Domain], term: Mapping[str, Any]) -> dict[str, Any]:
    by_label = [(domain, {**term, "topologyKey": domain.label}) for domain in domains]
    required = [each for domain, each in by_label if domain.required]
    preferred = [
        {"weight": 100, "podAffinityTerm": each} for domain, each in by_label if not domain.required
    ]
    parts = {_REQUIRED: required, _PREFERRED: preferred}
    return {name: part for name, part in parts.items() if part}


def _nothing(*_of: Any) -> dict[str, Any]:
    return {}


def _kueue(of: Scheduling, placement: Placement, pods: Pods, _members: int) -> dict[str, Any]:
    labels = {KUEUE_QUEUE_LABEL: of.queue, KUEUE_PRIORITY_LABEL: of.workload_priority_class}
    annotations: dict[str, str] = {}
    if of.topology_aware and placement.same:
        how = "required" if placement.same.required else "preferred"
        annotations[f"kueue.x-k8s.io/podset-{how}-topology"] = placement.same.label
        # Kueue takes a group of two roles, one of which has one pod, and no other group.
        if len(pods.roles) == 2 and 1 in pods.roles.values():
            annotations["kueue.x-k8s.io/podset-group-name"] = "all"
    given = {key: value for key, value in labels.items() if value}
    return {"job_labels": given, "pod_annotations": annotations}


def _volcano(of: Scheduling, _placement: Placement, pods: Pods, members: int) -> dict[str, Any]:
    annotations = {VOLCANO_QUEUE_ANNOTATION: of.queue} if of.queue else {}
    if of.gang:
        annotations[VOLCANO_GROUP_ANNOTATION] = pods.job_name
    return {"pod_annotations": annotations, "scheduling_policy": _policy(of, members)}


def _coscheduling(
    of: Scheduling, _placement: Placement, pods: Pods, members: int
) -> dict[str, Any]:
    labels = {COSCHEDULING_GROUP_LABEL: pods.job_name}
    return {"pod_labels": labels, "scheduling_policy": _policy(of, members)}


def _kai(of: Scheduling, placement: Placement, _pods: Pods, members: int) -> dict[str, Any]:
    labels = {KAI_QUEUE_LABEL: of.queue} if of.queue else {}
    annotations = {}
    if of.topology and placement.same:
        how = "required" if placement.same.required else "preferred"
        annotations["kai.scheduler/topology"] = of.topology
        annotations[f"kai.scheduler/topology-{how}-placement"] = placement.same.label
    # Without it KAI starts all pods together.
    policy = {"minAvailable": members} if of.min_member or not of.gang else {}
    return {
        "job_labels": labels,
        "job_annotations": annotations,
        "pod_labels": labels,
        "scheduling_policy": policy,
    }


def _yunikorn(of: Scheduling, _placement: Placement, pods: Pods, _members: int) -> dict[str, Any]:
    queue = {"yunikorn.apache.org/queue": of.queue} if of.queue else {}
    annotations = {}
    if of.gang:
        timeout, style = of.schedule_timeout, f"gangSchedulingStyle={of.gang_style}"
        wait = f"placeholderTimeoutInSeconds={timeout} " if timeout else ""
        annotations["yunikorn.apache.org/schedulingPolicyParameters"] = f"{wait}{style}"
    labels = {"yunikorn.apache.org/app-id": pods.job_name, **queue}
    return {"pod_labels": labels, "pod_annotations": annotations}


def _policy(of: Scheduling, members: int) -> dict[str, Any]:
    """Say the same to an operator that makes PodGroups: it fills in the one of the job's name."""
    policy = {
        "minAvailable": members,
        "queue": of.queue,
        "priorityClass": of.priority_class,
        "scheduleTimeoutSeconds": of.schedule_timeout,
    }
    return {key: value for key, value in policy.items() if value}
