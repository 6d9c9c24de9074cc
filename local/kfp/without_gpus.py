"""`--cpu`: what asks for GPUs, and for nodes that have some, taken out of a step's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Object = dict[str, Any]
# The inputs of a step that ask for GPUs and for nodes with GPUs, and what is used in their place.
_INPUTS: Object = {
    "gpus_per_node": 0,
    "gpus": 0,
    "node_selector": {},
    "affinity": {},
    "placement": {},
}
# The fields of a pod's spec that choose such nodes.
_OF_NODES = ("nodeSelector", "affinity", "runtimeClassName")
_PROCESSES = "nproc_per_node"
# Without it, processes of Transformers' Trainer or Accelerate that find no GPU train alone.
_ON_CPU = {"ACCELERATE_USE_CPU": "true"}


def inputs(given: Mapping[str, Any]) -> Object:
    """Returns the inputs of a step of this project, without what asks for GPUs.

    Where a node has as many processes as GPUs, it has one process; not of an MPIJob, whose command
    says how many there are. What would have had a GPU gets the variable with which Accelerate lets
    processes on CPUs train together.
    """
    patch, task, asked = given.get("pod_template_patch"), given.get("task_config"), {*_asked(given)}
    found = {**given, **{name: value for name, value in _INPUTS.items() if name in given}}
    if given.get("kind") == "MPIJob":
        found[_PROCESSES] = given.get(_PROCESSES) or str(max(1, *asked))
    elif _is_per_gpu(given.get(_PROCESSES), asked):
        found[_PROCESSES] = "1"
    if any(asked):
        found["env"] = {**_ON_CPU, **(given.get("env") or {})}
    if isinstance(patch, dict) and isinstance(patch.get("spec"), dict):
        found["pod_template_patch"] = {**patch, "spec": pod_spec(patch["spec"])}
    if isinstance(task, dict):
        found["task_config"] = _container({k: v for k, v in task.items() if k not in _OF_NODES})
    if isinstance(given.get("replicas"), dict):
        found["replicas"] = {role: _role(each) for role, each in given["replicas"].items()}
    if isinstance(given.get("manifest"), dict):
        found["manifest"] = _manifest(given["manifest"])
    return found


def _role(given: Any) -> Any:
    """What `kubeflow_job` is told of a role, without its GPUs."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if name != "gpus_per_node"}


def _manifest(job: Object) -> Object:
    """A whole manifest of a job, without the GPUs of its pods."""
    if isinstance(job.get("template"), dict) and isinstance(job["template"].get("spec"), dict):
        return {**job, "template": {**job["template"], "spec": pod_spec(job["template"]["spec"])}}
    return {
        name: _manifest(value) if isinstance(value, dict) else value for name, value in job.items()
    }


def pod_spec(spec: Object) -> Object:
    """Returns the spec of a pod, or a part of one, without GPUs and the nodes that have some."""
    found = {name: value for name, value in spec.items() if name not in _OF_NODES}
    for name in ("containers", "initContainers"):
        if isinstance(found.get(name), list):
            found[name] = [_container(each) for each in found[name]]
    return found


def accelerators(spec: Object) -> int:
    """How many of an extended resource a container of a pod asks for, of that with the most."""
    return max((each for of in spec.get("containers") or [] for each in _amounts(of)), default=0)


def _container(given: Any) -> Any:
    """A container without its extended resources: on a machine without GPUs, none has a use."""
    resources = given.get("resources") if isinstance(given, dict) else None
    if not isinstance(resources, dict):
        return given
    kept = {
        part: {name: amount for name, amount in of.items() if "/" not in name}
        if isinstance(of, dict)
        else of
        for part, of in resources.items()
    }
    return {**given, "resources": kept}


def _asked(given: Mapping[str, Any]) -> Iterator[int]:
    """The numbers of GPUs that a step's inputs ask for, of each place where they may be."""
    yield _whole(given.get("gpus_per_node"))
    placement = given.get("placement")
    if isinstance(placement, dict):
        # A MIG device is one of a pod.
        yield 1 if placement.get("mig") else _whole(placement.get("gpus"))
    yield from _amounts(given.get("task_config"))
    replicas = given.get("replicas")
    for role in replicas.values() if isinstance(replicas, dict) else ():
        yield _whole(role.get("gpus_per_node")) if isinstance(role, dict) else 0
    patch = given.get("pod_template_patch")
    spec = patch.get("spec") if isinstance(patch, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else []:
        yield from _amounts(container)


def _amounts(container: Any) -> list[int]:
    resources = container.get("resources") if isinstance(container, dict) else None
    limits = resources.get("limits") if isinstance(resources, dict) else None
    found = limits if isinstance(limits, dict) else {}
    return [_whole(amount) for name, amount in found.items() if "/" in name]


def _is_per_gpu(processes: Any, gpus: set[int]) -> bool:
    return processes == "gpu" or _whole(processes) in gpus - {0}


def _whole(value: Any) -> int:
    """A number as KFP and people write it; 0 for what is none."""
    try:
        return int(float(value))
    except (TypeError, ValueError, OverflowError):
        return 0
