"""From a container of a Pod object to a process of this machine."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import TERMINATION_LOG_ENV, TERMINATION_LOG_PATH, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubelet import environment, volumes
from kfp_pytorch.local.controllers.kubelet.process import Launch
from kfp_pytorch.local.controllers.kubelet.rewriting import Translation
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.processes import temporary

Object = dict[str, Any]

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What an image of Python has on its PATH, and what stands for it here.
_PYTHON = {
    "python": [sys.executable],
    "python3": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
# A reference to an image: registry, path, tag and digest.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::\d+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9+.-]+:[0-9a-fA-F]{32,})?"
)


class ImageError(Exception):
    """The image's name cannot be read (InvalidImageName)."""


class CreateError(Exception):
    """The container cannot be made (CreateContainerError)."""


@dataclass(frozen=True)
class Place:
    """Where a pod's processes run.

    Attributes:
        api: The cluster's objects.
        root: The cluster's folder.
        ports: Where pods listen.
        pod: The pod's object.
        folder: The pod's own folder.
        volumes: Volume name → folder.
        gpus: The numbers of the GPUs that are the pod's; None where this machine has none.
    """

    api: Api
    root: Path
    ports: Ports
    pod: Object
    folder: Path
    volumes: Mapping[str, Path]
    gpus: Sequence[int] | None = None

    def find(self, kind: Kind, name: str) -> Object | None:
        """An object of the pod's namespace, or None."""
        return self.api.find(kind, objects.namespace(self.pod), name)

    def termination_log(self, container: Object) -> Path:
        """The file that stands for a container's termination message path."""
        return self.folder / "containers" / str(container["name"]) / "termination-log"

    def log(self, container: Object, restarts: int) -> Path:
        """The log of one start of a container."""
        meta = objects.metadata(self.pod)
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        return self.root / "logs" / name / str(container["name"]) / f"{restarts}.log"


def check_image(image: str) -> None:
    """Refuse the name of an image that no runtime could pull.

    Raises:
        ImageError: It is not a reference to an image.
    """
    if not _IMAGE.fullmatch(image):
        raise ImageError(
            f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": '
            "invalid reference format"
        )


def launch(place: Place, container: Object, restarts: int) -> Launch:
    """Decide how a container's process is started.

    Args:
        place: Where it runs.
        container: The container.
        restarts: How often it was started before.

    Raises:
        environment.ConfigError: Something that it refers to is missing.
        CreateError: There is no command.
        OSError: The pod's folder cannot be written, as when the disk is full.
    """
    declared = environment.variables(place.pod, container, place.find)
    command = environment.command(container, declared)
    if not command:
        raise CreateError(
            "no command specified: the image is this Python, which has no entry point; give the "
            f"container {container['name']} a command"
        )
    message_path = container.get("terminationMessagePath") or TERMINATION_LOG_PATH
    _empty_termination_log(place.termination_log(container))
    mounts = volumes.mounts(container, place.volumes, declared)
    mounts[message_path] = str(place.termination_log(container))
    translation = Translation(mounts, _ports(place, container), _endpoint(place))
    values = {TERMINATION_LOG_ENV: message_path, **declared}
    about_the_pod = {name: values.pop(name) for name in _about_the_pod(container)}
    return Launch(
        command=translation.command(command),
        environment=_initial(place) | translation.variables(values) | about_the_pod,
        folder=_working_folder(place, container, translation),
        log=place.log(container, restarts),
        grace=float(place.pod["spec"].get("terminationGracePeriodSeconds", 30)),
    )


def _ports(place: Place, container: Object) -> dict[int, int]:
    declared = [int(port["containerPort"]) for port in container.get("ports") or []]
    return {port: place.ports.of(place.pod, port) for port in declared}


def _endpoint(place: Place) -> Any:
    namespace = objects.namespace(place.pod)
    return lambda host, port: place.ports.endpoint(namespace, host, port)


def _empty_termination_log(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    path.chmod(0o666)


def _about_the_pod(container: Object) -> list[str]:
    """The variables that say something of the pod itself; its name is also its service's."""
    variables = container.get("env") or []
    return [each["name"] for each in variables if "fieldRef" in (each.get("valueFrom") or {})]


def _initial(place: Place) -> dict[str, str]:
    """The short list of variables that every process has."""
    home = place.folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    found = {
        "PATH": ":".join([*_python_folders(place.root), _SYSTEM_PATH]),
        "HOME": str(home),
        "TMPDIR": str(_temporary_folder(place)),
        "LANG": "C.UTF-8",
        "HOSTNAME": objects.name(place.pod),
        # Pods share the cores of one machine: threads of OpenMP that spin while they wait for each
        # other take them from the other pods, and make these several times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if place.gpus is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
    return found


def _temporary_folder(place: Place) -> Path:
    """The pod's folder for temporary files.

    It lies outside of the pod's own, which only points to it: see `temporary`.
    """
    pointer = place.folder / "tmp"
    if not pointer.is_symlink():
        short = temporary.short_folder(place.root / "tmp")
        pointer.symlink_to(tempfile.mkdtemp(prefix="kfp-", dir=short))
    return pointer.readlink()


def remove_folder(folder: Path) -> None:
    """Remove a pod's folder, and the one for its temporary files."""
    pointer = folder / "tmp"
    if pointer.is_symlink():
        shutil.rmtree(pointer.readlink(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _python_folders(root: Path) -> list[str]:
    """Where this Python's commands lie, first of all those that its own folder lacks."""
    own = str(Path(sys.executable).parent)
    missing = {name: line for name, line in _PYTHON.items() if not shutil.which(name, path=own)}
    if not missing:
        return [own]
    folder = root / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, line in missing.items():
        script = folder / name
        if not script.exists():
            script.write_text(f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n')
            script.chmod(0o755)
    return [str(folder), own]


def _working_folder(place: Place, container: Object, translation: Translation) -> Path:
    given = container.get("workingDir") or ""
    translated = translation.path(given)
    # The image is this Python: a folder of another image is made under the pod's own.
    folder = Path(translated) if translated else place.folder / "work" / given.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
