"""Which schedulers a finished job names, whoever wrote that: a job has one. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.demands import (
    COSCHEDULING_GROUP_LABEL,
    VOLCANO_GROUP_ANNOTATION,
)
from kfp_pytorch.launcher.inputs.scheduling.scheduler import (
    COSCHEDULING,
    KAI,
    KUEUE,
    PREFIXES,
    SCHEDULER_NAMES,
    VOLCANO,
    Scheduling,
)

# The Training Operator's own, of schedulingPolicy. These read it, or make the same PodGroup of it.
_OPERATOR = "the operator's gang scheduling"
_OF_OPERATOR = {VOLCANO, COSCHEDULING, KAI}
# Kueue reads it of any job.
_NO_GANG = {"priorityClass"}
_SCHEDULERS = {name: scheduler for scheduler, name in SCHEDULER_NAMES.items()}
Object = Mapping[str, Any]
Names = list[tuple[str, str]]
"""Schedulers, each with what names it."""


def check(asked: Scheduling, job: Object, templates: Iterable[Object]) -> None:
    """Refuse a job that names two schedulers, or two PodGroups.

    `templates`: those of its pods. Raises InputError.
    """
    found, groups = in_job(asked, job), list[str]()
    for template in templates:
        found += in_pods(template, "the pods'")
        groups += _groups(template)
    check_one(found)
    others = [group for group in groups if group != job["metadata"]["name"]]
    if others and _gang(job):
        raise InputError(
            f"The pods name the PodGroup {others[0]!r}, and runPolicy.schedulingPolicy is for the "
            "one that the operator makes for the job; a pod is in one. Drop one of them."
        )


def check_one(found: Names) -> None:
    """Refuse more than one scheduler. Raises InputError."""
    by: dict[str, str] = {}
    for scheduler, place in found:
        by.setdefault(scheduler, place)
    if by.keys() & _OF_OPERATOR:
        by.pop(_OPERATOR, None)
    if len(by) > 1:
        one, other = [f"{scheduler} (by {place})" for scheduler, place in by.items()][:2]
        raise InputError(
            f"The job is for {one} and for {other}, and a job has one scheduler: Kueue lets whole "
            "jobs start, and the others place pods by queues of their own. Keep one of them, and "
            "drop what names the other."
        )


def in_job(asked: Scheduling, job: Object) -> Names:
    """Return the schedulers that a job names, but for its pods."""
    found = [(asked.scheduler, "the input scheduling")] if asked.scheduler else []
    found += _in_metadata(job, "the job's")
    spec = job["spec"]
    for part in (spec, spec.get("runPolicy") or {}):
        if str(part.get("managedBy")).startswith(PREFIXES[KUEUE]):
            found.append((KUEUE, f"managedBy {part['managedBy']!r}"))
    return found + ([(_OPERATOR, "runPolicy.schedulingPolicy")] if _gang(job) else [])


def in_pods(template: Object, whose: str) -> Names:
    """Return the schedulers that a template of pods names; `whose`: the pods, for messages."""
    name = str((template.get("spec") or {}).get("schedulerName"))
    scheduler = _SCHEDULERS.get(name)
    by_name = [(scheduler, f"{whose} schedulerName {name!r}")] if scheduler else []
    return [*_in_metadata(template, whose), *by_name]


def _in_metadata(of: Object, whose: str) -> Iterator[tuple[str, str]]:
    metadata = of.get("metadata") or {}
    for part, word in (("labels", "label"), ("annotations", "annotation")):
        for key in metadata.get(part) or {}:
            for scheduler, prefixes in PREFIXES.items():
                if key.startswith(prefixes):
                    yield scheduler, f"{whose} {word} {key!r}"


def _gang(job: Object) -> bool:
    policy = (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") or {}
    return bool(policy.keys() - _NO_GANG)


def _groups(template: Object) -> Iterator[str]:
    metadata = template.get("metadata") or {}
    for part, key in (
        ("labels", COSCHEDULING_GROUP_LABEL),
        ("annotations", VOLCANO_GROUP_ANNOTATION),
    ):
        if key in (metadata.get(part) or {}):
            yield metadata[part][key]
