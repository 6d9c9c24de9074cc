"""`--cpu`: the tasks of a pipeline package as they run without GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kfp_pytorch.client.packages.checks import job_inputs, job_of, known_kind
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.known_tasks import KnownTask
from kfp_pytorch.components import forms
from kfp_pytorch.local.kfp import without_gpus


def steps(package: Package) -> list[str]:
    """Returns the executors of this project's steps: those whose inputs are known to ask."""
    executors = package.spec.get("deploymentSpec", {}).get("executors", {})
    return [
        label for label, of in executors.items() if forms.function_of(of.get("container") or {})
    ]


def changed(task: KnownTask) -> KnownTask:
    """Returns a task of this project's components as it runs."""
    return replace(task, inputs=without_gpus.inputs(task.inputs)) if task.function else task


def changes(tasks: list[KnownTask]) -> Iterator[str]:
    """Says what `changed` changes about jobs and model servers, as far as that is known."""
    for task in tasks:
        if known_kind(task):
            before, now = job_inputs(task), job_inputs(changed(task))
            gpus = _gpus(task)
            if gpus:
                words = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
                shapes = [f"{each.num_nodes} × {each.nproc_per_node}" for each in (now, before)]
                changed_to = f": {shapes[0]} processes in place of {shapes[1]}"
                yield (
                    f"task {task.name} trains on the CPU, without its {words} a node"
                    f"{changed_to if shapes[0] != shapes[1] else ''}."
                )
        elif changed(task).inputs.get("gpus") != task.inputs.get("gpus"):
            yield f"task {task.name} deploys a model server without GPUs."


def _gpus(task: KnownTask) -> int:
    """The accelerators of a pod of a task's job."""
    kind = known_kind(task)
    templates: list[dict[str, Any]] = kind.pod_templates(job_of(task)) if kind else []
    return max((without_gpus.accelerators(each["spec"]) for each in templates), default=0)
