"""Finds what a run on this machine cannot do, before it starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import click

from kfp_pytorch.client.packages import messages
from kfp_pytorch.client.packages.find import Package

# How KFP starts a Python component, and how one whose source is in its image.
_EXECUTOR = "kfp.dsl.executor_main"
_IN_IMAGE = ["python3", "-m", _EXECUTOR]
# What `kfp.kubernetes` sets on a step's pod that says nothing to a process of this machine.
_OF_PODS_ALONE = {"imagePullPolicy", "imagePullSecret", "podMetadata", "securityContext"}


def check(package: Package, heeded: Collection[str] = ()) -> None:
    """Refuses what kfp.local cannot run, and warns of settings that it ignores.

    `heeded`: the settings of `kfp.kubernetes` that the run makes up for.
    Raises click.ClickException: there is a container component or one that is in its image, or an
    optional artifact that is not given is passed on.
    """
    executors = package.spec.get("deploymentSpec", {}).get("executors", {})
    refused = [_step(label) for label, executor in executors.items() if not _runs(executor)]
    if refused:
        raise click.ClickException(
            f"{package.pipeline_name}: {', '.join(refused)} cannot run on this machine: steps run "
            "without Docker here, so each must be a lightweight Python component (@dsl.component), "
            "no container component and none with its source in an image. Take it out of this "
            "pipeline, or run it on a cluster."
        )
    not_given = next(_not_given(package.spec), "")
    if not_given:
        raise click.ClickException(
            f"{package.pipeline_name}: {not_given}, which is not given, though it is optional. KFP "
            "fails in that case. Give one, or have a pipeline without it."
        )
    for label, settings in messages.kubernetes_settings(package.platform).items():
        without = sorted(set(settings) - _OF_PODS_ALONE - set(heeded))
        if without:
            click.echo(
                f"Warning: {_step(label)}: what kfp.kubernetes sets on a step has no effect in a "
                f"run on this machine: {', '.join(without)}. Where it is for training pods, give "
                "it to pytorch_job as an input, such as env, node_selector or pod_template_patch.",
                err=True,
            )


def _not_given(spec: dict[str, Any]) -> Iterator[str]:
    """Yields the tasks that get an optional artifact that the pipeline was not given.

    So KFP's driver fails as well: "parent DAG does not have input artifact",
    https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/resolve.go
    """
    components = spec.get("components", {})
    calls: list[tuple[str, dict[str, Any], set[str]]] = [("the pipeline", spec["root"], set())]
    for dag in (spec["root"], *components.values()):
        for name, task in dag.get("dag", {}).get("tasks", {}).items():
            given = task.get("inputs", {}).get("artifacts", {})
            calls.append((f"task {name}", components[task["componentRef"]["name"]], set(given)))
    for caller, component, given in calls:
        declared = component.get("inputDefinitions", {}).get("artifacts", {})
        lacking = {name for name, of in declared.items() if of.get("isOptional")} - given
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            sources = task.get("inputs", {}).get("artifacts", {}).values()
            taken = {source.get("componentInputArtifact") for source in sources}
            # A condition may be there for that very case.
            if taken & lacking and "triggerPolicy" not in task:
                yield f"{caller} hands task {name} the artifact {min(taken & lacking)!r}"


def _runs(executor: dict[str, Any]) -> bool:
    container = executor.get("container")
    if container is None:  # an importer
        return True
    command = container.get("command", [])
    return command[:3] != _IN_IMAGE and any(_EXECUTOR in part for part in command)


def _step(label: str) -> str:
    return f"step {label.removeprefix('exec-')}"
