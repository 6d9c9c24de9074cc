"""The process of this machine that runs a container of a Pod object."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kfp_pytorch.launcher.constants import TERMINATION_LOG_ENV, TERMINATION_LOG_PATH, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubelet import environment, mpi, volumes
from kfp_pytorch.local.controllers.kubelet.process import ProcessSpec
from kfp_pytorch.local.controllers.kubelet.rewriting import Rewriter
from kfp_pytorch.local.controllers.kubelet.timing import Timing
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.processes import beside, programs, temporary

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
class Node:
    """What all pods of this machine share."""

    api: Api  # the cluster's objects
    root: Path  # the cluster's folder
    ports: Ports  # where pods listen
    recorder: Recorder  # records the kubelet's events
    timing: Timing  # the kubelet's delays
    requests: Requests  # what pods are being asked


@dataclass(frozen=True)
class Place:
    """Where a pod's processes run."""

    node: Node  # what the pod shares with others
    pod: Object  # the pod's object
    folder: Path  # the pod's own folder
    volumes: Mapping[str, Path]  # volume name → folder
    gpus: Sequence[int] | None = None  # the numbers of its GPUs; None where there are none

    def find(self, kind: Kind, name: str) -> Object | None:
        """An object of the pod's namespace, or None."""
        return self.node.api.find(kind, objects.namespace(self.pod), name)

    def termination_log(self, container: Object) -> Path:
        """The file that stands for a container's termination message path."""
        return self.folder / "containers" / str(container["name"]) / "termination-log"

    def log(self, container: Object, restarts: int) -> Path:
        """The log of one start of a container."""
        meta = objects.metadata(self.pod)
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        return self.node.root / "logs" / name / str(container["name"]) / f"{restarts}.log"


def check_image(image: str) -> None:
    """Refuse an invalid name of an image. Raises ImageError: it is not a reference to an image."""
    if not _IMAGE.fullmatch(image):
        raise ImageError(
            f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": '
            "invalid reference format"
        )


def process_spec(place: Place, container: Object, restarts: int) -> ProcessSpec:
    """The process of a container. Raises ConfigError, CreateError or OSError."""
    declared = environment.variables(place.pod, container, place.find)
    command = environment.command(container, declared)
    if not command:
        raise CreateError(
            "no command specified: the image is this Python, which has no entry point; give the "
            f"container {container['name']} a command"
        )
    message_path = container.get("terminationMessagePath") or TERMINATION_LOG_PATH
    termination_log = place.termination_log(container)
    termination_log.parent.mkdir(parents=True, exist_ok=True)
    termination_log.write_bytes(b"")
    termination_log.chmod(0o666)
    mounts = volumes.mounts(container, place.volumes, declared)
    mounts[message_path] = str(termination_log)
    rewriter = Rewriter(
        mounts,
        {port: place.node.ports.of(place.pod, port) for port in _ports(container)},
        partial(place.node.ports.endpoint, objects.namespace(place.pod)),
    )
    values = {TERMINATION_LOG_ENV: message_path, **declared}
    from_fields = {name: values.pop(name) for name in _field_variables(container)}
    own = rewriter.variables(values) | from_fields
    base = _base_environment(place)
    socket = beside.socket_of(place.folder, container["name"])
    return ProcessSpec(
        command=mpi.command(place.pod, rewriter.command(command), socket),
        environment=base | mpi.variables(place.pod, base, own) | own,
        folder=_working_folder(place, container, rewriter),
        log=place.log(container, restarts),
        grace=float(place.pod["spec"].get("terminationGracePeriodSeconds", 30)),
    )


def _ports(container: Object) -> set[int]:
    """The ports that a container states, and those that only its probes do."""
    probes = (container.get(f"{kind}Probe") or {} for kind in ("startup", "readiness", "liveness"))
    actions = (probe.get("httpGet") or probe.get("tcpSocket") or {} for probe in probes)
    probed = {action["port"] for action in actions if isinstance(action.get("port"), int)}
    return probed | {int(port["containerPort"]) for port in container.get("ports") or []}


def _field_variables(container: Object) -> list[str]:
    """The variables from the pod's own fields: its name would be rewritten as its service's."""
    variables = container.get("env") or []
    return [each["name"] for each in variables if "fieldRef" in (each.get("valueFrom") or {})]


def _base_environment(place: Place) -> dict[str, str]:
    home = place.folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    found = {
        "PATH": ":".join([*_python_folders(place.node.root), programs.SYSTEM_PATH]),
        "HOME": str(home),
        "TMPDIR": str(_temporary_folder(place)),
        "LANG": "C.UTF-8",
        "HOSTNAME": objects.name(place.pod),
        # Pods share the cores of one machine: spinning threads of OpenMP would take them from the
        # other pods.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if place.gpus is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
    return found


def _temporary_folder(place: Place) -> Path:
    """The pod's folder for temporary files, to which its own points: see `temporary`."""
    pointer = place.folder / "tmp"
    if not pointer.is_symlink():
        short = temporary.short_folder(place.node.root / "tmp")
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
    missing = {
        name: line for name, line in programs.OF_PYTHON.items() if not shutil.which(name, path=own)
    }
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


def _working_folder(place: Place, container: Object, rewriter: Rewriter) -> Path:
    given = container.get("workingDir") or ""
    mounted = rewriter.path(given)
    # The image is this Python: a folder of another image is made under the pod's own.
    folder = Path(mounted) if mounted else place.folder / "work" / given.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
