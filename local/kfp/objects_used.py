"""The Secrets, ConfigMaps and claims of a step's pod, for its process.

As in pods that the kubelet runs, a mount path is replaced by its folder where a parameter, an
argument or a variable begins with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.controllers.kubelet import environment, volumes
from kfp_pytorch.local.controllers.kubelet.rewriting import Rewriter
from kfp_pytorch.local.controllers.kubernetes import one_machine
from kfp_pytorch.local.kfp import commands
from kfp_pytorch.local.kfp.packages import PreparationError


class Missing(PreparationError):
    """An object that a step uses is not there."""


class Pod(Protocol):
    """The pod of a step."""

    created: dict[str, Any]

    def find(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """Reads an object of its namespace; None if there is none."""


def apply(
    pod: Pod, command: list[str], scratch: Path, root: Path
) -> tuple[list[str], dict[str, str]]:
    """Returns the command with its paths replaced, and the variables that the pod declares.

    `scratch`: a folder for mounted files, removed with the step. `root`: the cluster's folder, with
    the claims. Raises Missing.
    """
    (container,) = pod.created["spec"]["containers"]
    for kind, name, key in one_machine.references(_of_the_step(pod.created)["spec"]):
        why = one_machine.lacking(kind, name, key, pod.find(kind, name))
        if why:
            raise Missing(why)
    try:
        declared = environment.variables(pod.created, container, pod.find)
        prepared = volumes.prepare(_of_the_step(pod.created), scratch, root, pod.find)
    except (environment.ConfigError, volumes.VolumeError) as error:
        raise Missing(str(error)) from None
    for name in [name for name, value in declared.items() if "\0" in value]:
        raise Missing(
            f"the variable {name} would have a NUL character, which no program takes: mount what "
            "it is of, with use_secret_as_volume or use_config_map_as_volume."
        )
    own = [each for each in container.get("volumeMounts") or [] if each["name"] in prepared]
    mounts = volumes.mounts({"volumeMounts": own}, prepared, declared)
    rewriter = Rewriter(mounts, {}, lambda _host, _port: None)
    return _with_paths(command, rewriter), rewriter.variables(declared)


def _of_the_step(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod without what admission adds, which this step's process has no use for."""
    own = [each for each in pod["spec"].get("volumes") or [] if "projected" not in each]
    return {**pod, "spec": {**pod["spec"], "volumes": own}}


def _with_paths(command: list[str], rewriter: Rewriter) -> list[str]:
    values = {
        name: (rewriter.path(value) or value) if isinstance(value, str) else value
        for name, value in commands.inputs(command).items()
    }
    return commands.with_inputs(command, values)
