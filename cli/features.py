"""What a run on this machine cannot do, told before it starts."""

from __future__ import annotations

from typing import Any

import click

from kfp_pytorch.cli import shape
from kfp_pytorch.cli.packages import Package

# How KFP starts a Python component, and how one whose source is in its image.
_EXECUTOR = "kfp.dsl.executor_main"
_IN_IMAGE = ["python3", "-m", _EXECUTOR]
# What `kfp.kubernetes` sets on a step's pod that says nothing to a process of this machine.
_OF_PODS_ALONE = {"imagePullPolicy", "imagePullSecret", "podMetadata", "securityContext"}


def check(package: Package) -> None:
    """Refuses steps that kfp.local cannot run, and warns of settings that it passes over.

    Args:
        package: The package.

    Raises:
        click.ClickException: When there is a container component or one that is in its image.
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
    for label, settings in shape.kubernetes_settings(package.platform).items():
        without = sorted(set(settings) - _OF_PODS_ALONE)
        if without:
            click.echo(
                f"Warning: {_step(label)}: what kfp.kubernetes sets on a step has no effect in a "
                f"run on this machine: {', '.join(without)}. Where it is for training pods, give "
                "it to pytorch_job as an input, such as env, node_selector or pod_template_patch.",
                err=True,
            )


def _runs(executor: dict[str, Any]) -> bool:
    container = executor.get("container")
    if container is None:  # an importer
        return True
    command = container.get("command", [])
    return command[:3] != _IN_IMAGE and any(_EXECUTOR in part for part in command)


def _step(label: str) -> str:
    return f"step {label.removeprefix('exec-')}"
