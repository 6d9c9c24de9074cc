"""The two forms of one package: embedded, and image.

*Embedded* is what a component is when imported: the launcher's source inside, a stock Python
image, and pip at the start of the step. *Image* is for an image, or a Python, that has all of
that installed.
"""

from __future__ import annotations

import copy
from typing import Any

from kfp_pytorch.components.embedding import without_launcher

# `image` of a local run: the Python that runs the command. kfp.local warns of a name without
# `python` in it.
THIS_PYTHON = "this Python"


def image_form(spec: dict[str, Any], image: str) -> dict[str, Any]:
    """Turns a package's embedded form into its image form.

    Only this project's components change; they are known by the source that they carry. All
    other steps, their images and what they install stay as they are.

    Args:
        spec: The pipeline's specification (the first document of a compiled YAML), parsed.
        image: The image that has the launcher, such as `constants.LAUNCHER_IMAGE`.

    Returns:
        A new specification in which each of our steps runs in `image` and installs nothing. A
        package that is in image form already comes back as it was.
    """
    result = copy.deepcopy(spec)
    for container in _containers(result):
        source = without_launcher(container["command"][-1])
        if source is not None:
            container["image"] = image
            container["command"] = [*_without_install(container["command"][:-1]), source]
    return result


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    found = [executor.get("container") for executor in executors.values()]
    return [container for container in found if container and container.get("command")]


def _without_install(command: list[str]) -> list[str]:
    """Drops KFP's `sh -c '… pip install … && "$0" "$@"'` from the head of a command."""
    if command[:2] == ["sh", "-c"] and "pip install" in command[2]:
        return command[3:]
    return command
