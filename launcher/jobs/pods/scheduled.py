"""What `scheduling` and `placement` demand, put into a job and its pods."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.demands import (
    Demands,
    Pods,
    demands,
    merged,
)
from kfp_pytorch.launcher.inputs.scheduling.gang import min_resources, task_groups
from kfp_pytorch.launcher.jobs.pods.inputs import PodInputs


def demands_of(inputs: PodInputs, pods: Pods) -> Demands:
    """Return what the inputs demand of a job and its pods.

    Raises InputError: a label, an annotation or the pods' patch says otherwise.
    """
    patch = inputs.pod_template_patch
    metadata = patch.get("metadata") or {}
    found = demands(inputs.scheduling, inputs.placement, pods)
    merged("pod_template_patch.metadata.labels", metadata.get("labels") or {}, found.pod_labels)
    own = metadata.get("annotations") or {}
    merged("pod_template_patch.metadata.annotations", own, found.pod_annotations)
    _check_patch(patch.get("spec") or {}, found.pod_spec)
    return found


def with_demands(spec: Mapping[str, Any], demanded: Demands) -> dict[str, Any]:
    """Return a pod's spec with what is demanded."""
    changed = copy.deepcopy(dict(spec)) | demanded.pod_spec
    affinity = demanded.pod_spec.get("affinity")
    if affinity:
        changed["affinity"] = _joined(spec.get("affinity") or {}, affinity)
    return changed


def with_task_groups(
    inputs: PodInputs, pods: Pods, templates: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the templates of all roles with what a scheduler is told of them together.

    Raises InputError: pods request nothing that could be reserved.
    """
    groups = task_groups(inputs.scheduling, pods, templates)
    built = {role: copy.deepcopy(template) for role, template in templates.items()}
    for role, own in groups.items():
        built[role]["metadata"]["annotations"] |= own
    return built


def with_resources(
    inputs: PodInputs, pods: Pods, templates: Mapping[str, Any], demanded: Demands
) -> Demands:
    """Return what is demanded with what the gang of these templates requests together."""
    found = min_resources(inputs.scheduling, pods, templates)
    if not found:
        return demanded
    return replace(demanded, scheduling_policy=demanded.scheduling_policy | {"minResources": found})


def _joined(given: Mapping[str, Any], demanded: Mapping[str, Any]) -> dict[str, Any]:
    """Join two affinities: their terms are all of one pod's."""
    joined = copy.deepcopy(dict(given))
    for kind, parts in demanded.items():
        part = joined[kind] = dict(joined.get(kind) or {})
        for how, terms in parts.items():
            part[how] = [*(part.get(how) or []), *terms]
    return joined


def _check_patch(patch: Mapping[str, Any], demanded: Mapping[str, Any]) -> None:
    for name in ("schedulerName", "priorityClassName", "hostIPC"):
        if name in patch and name in demanded and patch[name] != demanded[name]:
            raise InputError(
                f"pod_template_patch.spec.{name} is {patch[name]!r}, and scheduling or placement "
                f"sets it to {demanded[name]!r}; drop one."
            )
