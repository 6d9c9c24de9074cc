"""Pods that start together: their PodGroup, their task groups, what they request. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_pytorch.launcher.constants import COSCHEDULING_POD_GROUP, VOLCANO_POD_GROUP, Kind
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s
from kfp_pytorch.launcher.inputs.scheduling.demands import Pods, min_member
from kfp_pytorch.launcher.inputs.scheduling.scheduler import (
    COSCHEDULING,
    VOLCANO,
    YUNIKORN,
    Scheduling,
)


def pod_group(
    scheduling: Scheduling, members: int, resources: Mapping[str, str]
) -> tuple[Kind, dict[str, Any]] | None:
    """Return the PodGroup that a job needs, its kind and its spec; None where it needs none.

    `resources`: what its members request together. KAI makes its own, and YuniKorn has none.
    """
    named: dict[str, Any] = {"minMember": members, "minResources": dict(resources)}
    if scheduling.scheduler == COSCHEDULING:
        kind = COSCHEDULING_POD_GROUP
        named["scheduleTimeoutSeconds"] = scheduling.schedule_timeout
    elif scheduling.scheduler == VOLCANO and scheduling.gang:
        kind = VOLCANO_POD_GROUP
        named |= {"queue": scheduling.queue, "priorityClassName": scheduling.priority_class}
    else:
        return None
    return kind, {key: value for key, value in named.items() if value}


def task_groups(
    scheduling: Scheduling, pods: Pods, templates: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, str]]:
    """Return YuniKorn's annotations of each role's pods, by their templates with the patch.

    Other schedulers need none. The pods that hold the places get the labels that `same` and
    `spread` select by. Raises InputError: pods request nothing that could be reserved.
    """
    if scheduling.scheduler != YUNIKORN or not scheduling.gang:
        return {}
    groups = [
        _task_group(role, members, pods.selector, templates[role]["spec"])
        for role, members in _gang(scheduling, pods).items()
    ]
    # Where pods request nothing, there is always room for them.
    groups = [group for group in groups if group["minResource"]]
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


def min_resources(
    scheduling: Scheduling, pods: Pods, templates: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return what the pods of a gang request together, for its PodGroup; empty for no PodGroup.

    Without it Volcano does not look whether its queue has room before it admits the gang, and
    coscheduling tries pod after pod where the cluster cannot hold all.
    """
    if scheduling.scheduler not in (VOLCANO, COSCHEDULING) or not scheduling.gang:
        return {}
    gang = _gang(scheduling, pods).items()
    return _requests((templates[role]["spec"], members) for role, members in gang)


def _gang(scheduling: Scheduling, pods: Pods) -> dict[str, int]:
    """How many pods of each role start together: those of the first roles."""
    left = min_member(scheduling, pods.members)
    found = {}
    for role, count in pods.roles.items():
        found[role] = min(count, left)
        left -= found[role]
    return {role: members for role, members in found.items() if members}


def _task_group(
    role: str, members: int, labels: Mapping[str, str], spec: Mapping[str, Any]
) -> dict[str, Any]:
    kept = {"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"} & spec.keys()
    group = {"name": role.lower(), "minMember": members, "minResource": _requests([(spec, 1)])}
    return group | {"labels": dict(labels), **{key: spec[key] for key in sorted(kept)}}


def _requests(pods: Iterable[tuple[Mapping[str, Any], int]]) -> dict[str, str]:
    """What the containers of so many pods of each spec request together."""
    found: dict[str, list[tuple[str, int]]] = {}
    for spec, count in pods:
        for container in spec["containers"]:
            parts = container.get("resources") or {}
            asked = {**(parts.get("limits") or {}), **(parts.get("requests") or {})}
            for name, amount in asked.items():
                found.setdefault(name, []).append((str(amount), count))
    return {name: _total(name, amounts) for name, amounts in found.items()}


def _total(name: str, amounts: list[tuple[str, int]]) -> str:
    """Add quantities, each so many times: in their own unit where that is one and they are whole.

    Else in thousandths, which every amount of a container can be written in.
    """
    total = sum(_value(name, amount) * count for amount, count in amounts)
    whole = [re.fullmatch(r"(\d+)([A-Za-z]*)", amount) for amount, _ in amounts]
    units = {match[2] if match else None for match in whole}
    if len(units) == 1 and None not in units:
        counted = zip(whole, amounts, strict=True)
        return f"{sum(int(match[1]) * of[1] for match, of in counted if match)}{units.pop()}"
    parts = round(1000 * total)
    return str(parts // 1000) if parts % 1000 == 0 else f"{parts}m"


def _value(name: str, amount: str) -> float:
    value = k8s.quantity_value(amount)
    if value is None:
        raise InputError(f"A container's {name} is {amount!r}, which is no quantity.")
    return value
