"""From `scheduling` and `placement` to what a job, its pods and its PodGroup must have. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.constants import (
    COSCHEDULING_POD_GROUP,
    STEP_ID_LABEL,
    VOLCANO_POD_GROUP,
    Kind,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s
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

    Raises InputError: more pods are to start together than the job has.
    """
    members = min_member(scheduling, pods.members, sum(pods.roles.values()))
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


def min_member(scheduling: Scheduling, members: int, pods: int) -> int:
    """Return how many pods start together.

    `members`: how many the job needs. `pods`: how many it has.
    """
    if not scheduling.gang:
        return 1
    if scheduling.min_member > pods:
        raise InputError(
            f"scheduling.min_member is {scheduling.min_member} and the job has {pods} pods; they "
            "would never start."
        )
    return scheduling.min_member or members


def pod_group(scheduling: Scheduling, members: int) -> tuple[Kind, dict[str, Any]] | None:
    """Return the PodGroup that a job needs, its kind and its spec; None where it needs none.

    KAI makes its own, and YuniKorn has none.
    """
    if scheduling.scheduler == COSCHEDULING:
        timeout = scheduling.schedule_timeout
        spec = {"minMember": members, **({"scheduleTimeoutSeconds": timeout} if timeout else {})}
        return COSCHEDULING_POD_GROUP, spec
    if scheduling.scheduler == VOLCANO and scheduling.gang:
        named = {"queue": scheduling.queue, "priorityClassName": scheduling.priority_class}
        given = {key: value for key, value in named.items() if value}
        return VOLCANO_POD_GROUP, {"minMember": members, **given}
    return None


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


def task_groups(
    scheduling: Scheduling, pods: Pods, templates: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, str]]:
    """Return YuniKorn's annotations of each role's pods, by their templates with the patch.

    Other schedulers need none. The pods that hold the places get the labels that `same` and
    `spread` select by. Raises InputError: pods request nothing that could be reserved.
    """
    if scheduling.scheduler != YUNIKORN or not scheduling.gang:
        return {}
    left = min_member(scheduling, pods.members, sum(pods.roles.values()))
    groups: list[dict[str, Any]] = []
    for role, count in pods.roles.items():
        members, left = min(count, left), left - min(count, left)
        group = _task_group(role, members, pods.selector, templates[role]["spec"])
        # Where pods request nothing, there is always room for them.
        groups += [group] if members and group["minResource"] else []
    if not groups:
        raise InputError(
            "scheduling asks YuniKorn for a gang, and the pods request nothing that it could "
            "reserve; set cpu and memory, or gang to false."
        )
    written = json.dumps(groups, separators=(",", ":"))
    named = {group["name"] for group in groups}
    return {
        role: {
            "yunikorn.apache.org/task-group-name": role.lower(),
            "yunikorn.apache.org/task-groups": written,
        }
        for role in pods.roles
        if role.lower() in named
    }


def _task_group(
    role: str, members: int, labels: Mapping[str, str], spec: Mapping[str, Any]
) -> dict[str, Any]:
    requests: dict[str, str] = {}
    for container in spec["containers"]:
        parts = container.get("resources") or {}
        asked = {**(parts.get("limits") or {}), **(parts.get("requests") or {})}
        for name, amount in asked.items():
            requests[name] = _sum(name, requests.get(name), str(amount))
    kept = {"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"} & spec.keys()
    group = {"name": role.lower(), "minMember": members, "minResource": requests}
    return group | {"labels": dict(labels), **{key: spec[key] for key in sorted(kept)}}


def _sum(name: str, one: str | None, other: str) -> str:
    """Add two quantities; in thousandths, which every amount of a container can be written in."""
    if one is None:
        return other
    amounts = (k8s.quantity_value(one), k8s.quantity_value(other))
    if None in amounts:
        raise InputError(f"A container's {name} is no quantity: {one!r}, {other!r}.")
    total = round(1000 * sum(amount or 0.0 for amount in amounts))
    return str(total // 1000) if total % 1000 == 0 else f"{total}m"


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
