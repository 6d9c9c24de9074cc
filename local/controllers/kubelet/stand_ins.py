"""Init containers that the Training Operator adds, and what is done here in place of their images.

They wait for other pods of their job. Source: kubeflow/trainer v1.9.3,
`pkg/controller.v1/{pytorch,mpi}`; kubeflow/mpi-operator v0.3.0, `cmd/kubectl-delivery`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kfp_pytorch.launcher.constants import INIT_CONTAINER, KUBECTL_CONTAINER, POD
from kfp_pytorch.local.controllers.kubelet.container_config import Place
from kfp_pytorch.local.controllers.kubelet.timing import sleep
from kfp_pytorch.local.controllers.kubernetes.status import is_ready, phase
from kfp_pytorch.local.controllers.trainingoperator import mpi

Wait = Callable[[Place, asyncio.Event], Awaitable[None]]
"""Waits for what a pod needs, until an event is set."""

_LOOK_AGAIN_S = 0.1


async def _master_has_a_name(_place: Place, _stopping: asyncio.Event) -> None:
    """The name of the master is the loopback address here."""


async def _workers_run(place: Place, stopping: asyncio.Event) -> None:
    """Wait for the pods of the hostfile; the image brings kubectl as well."""
    hostfile = place.volumes[mpi.CONFIG_VOLUME] / mpi.HOSTFILE
    names = [line.split()[0] for line in hostfile.read_text().splitlines()]
    waited_for = {name for name in names if not name.endswith("launcher")}
    while waited_for and not stopping.is_set():
        pods = {name: place.find(POD, name) or {} for name in waited_for}
        waited_for -= {
            name for name, pod in pods.items() if phase(pod) == "Running" and is_ready(pod)
        }
        if waited_for:
            await sleep(_LOOK_AGAIN_S, stopping)


OF_IMAGES: dict[str, Wait] = {INIT_CONTAINER: _master_has_a_name, KUBECTL_CONTAINER: _workers_run}
