"""`--cpu`: a pipeline package whose pods get no GPUs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from kfp_pytorch.cli.packages.checks import job_inputs
from kfp_pytorch.cli.packages.find import Package
from kfp_pytorch.cli.packages.known_tasks import known_tasks
from kfp_pytorch.components import forms
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.local.kfp.task_settings import tasks

# What asks for GPUs and for nodes that have some. A value is used where a step has such an input.
_INPUTS: dict[str, Any] = {"gpus_per_node": 0, "gpus": 0, "node_selector": {}, "affinity": {}}
_PROCESSES = "nproc_per_node"


def without_gpus(package: Package) -> Package:
    """Returns a copy in which no step of this project and no task asks for GPUs.

    Where a node has as many processes as GPUs, it has one process.
    """
    spec = copy.deepcopy(package.spec)
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    for executor in executors.values():
        executor.get("container", {}).get("resources", {}).pop("accelerator", None)
    for task, component in tasks(spec):
        container = executors.get(component.get("executorLabel", ""), {}).get("container", {})
        if not forms.function_of(container):
            continue
        given = task.setdefault("inputs", {}).setdefault("parameters", {})
        if _is_per_gpu(given.get(_PROCESSES), given.get("gpus_per_node")):
            given[_PROCESSES] = _constant("1")
        for name in component.get("inputDefinitions", {}).get("parameters", {}):
            if name in _INPUTS and name in given:
                given[name] = _constant(_INPUTS[name])
    return replace(package, spec=spec)


def changes(package: Package, arguments: dict[str, Any]) -> list[str]:
    """Says what `without_gpus` changes about the jobs of a package, as far as that is known."""
    said = []
    pairs = zip(
        known_tasks(package, arguments), known_tasks(without_gpus(package), arguments), strict=True
    )
    for task, changed in pairs:
        if task.function not in KINDS:
            continue
        before, now = job_inputs(task), job_inputs(changed)
        if before.gpus:
            said.append(
                f"task {task.name} trains on the CPU, without its {before.gpus} GPUs a node: "
                f"{now.num_nodes} × {now.nproc_per_node} processes in place of "
                f"{before.num_nodes} × {before.nproc_per_node}."
            )
    return list(dict.fromkeys(said))


def _is_per_gpu(processes: dict[str, Any] | None, gpus: dict[str, Any] | None) -> bool:
    """Whether a task says that it has a process for each GPU."""
    if processes is None:
        return False
    constant = processes.get("runtimeValue", {}).get("constant")
    if gpus is None or constant is None:
        return constant == "gpu" or processes == gpus
    asked = gpus.get("runtimeValue", {}).get("constant")
    return constant == "gpu" or (asked is not None and str(constant) == f"{asked:g}")


def _constant(value: Any) -> dict[str, Any]:
    return {"runtimeValue": {"constant": value}}
