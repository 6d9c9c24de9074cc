"""What tells the kinds of jobs of the Training Operator apart. No I/O.

https://github.com/kubeflow/trainer/tree/v1.9.3/pkg/controller.v1 and `pkg/webhooks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kfp_pytorch.launcher.constants import JAXJOB, MPIJOB, PADDLEJOB, TFJOB, XGBOOSTJOB, Kind
from kfp_pytorch.launcher.jobs.trainingoperator.roles import Roles


@dataclass(frozen=True)
class Framework:
    """A kind of job."""

    resource: Kind
    roles: Roles
    container: str  # the name that the operator wants of the container that trains
    replicas: Callable[[int], dict[str, int]]  # the pods of each role, by num_nodes
    required: tuple[str, ...] = ()  # roles that a job must have
    single: tuple[str, ...] = ()  # roles that have one pod, if any
    one_of: tuple[str, ...] = ()  # roles of which a job may have but one
    without_accelerators: tuple[str, ...] = ()  # roles that do not train
    variables: tuple[str, ...] = ()  # what the operator sets in the environment
    processes: int = 1  # processes of a pod; 0 where the program says how many


TENSORFLOW = Framework(
    TFJOB,
    Roles("tfReplicaSpecs", ("Chief", "Master", "Worker", "PS", "Evaluator")),
    container="tensorflow",
    replicas=lambda nodes: {"Worker": nodes},
    single=("Chief", "Master"),
    one_of=("Chief", "Master"),
    without_accelerators=("PS", "Evaluator"),
    variables=("TF_CONFIG",),
)
MPI = Framework(
    MPIJOB,
    Roles("mpiReplicaSpecs", ("Launcher", "Worker"), unnumbered="Launcher"),
    container="mpi",
    replicas=lambda nodes: {"Launcher": 1, "Worker": nodes},
    required=("Launcher", "Worker"),
    single=("Launcher",),
    without_accelerators=("Launcher",),
    variables=("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_default_hostfile"),
    processes=0,
)
XGBOOST = Framework(
    XGBOOSTJOB,
    Roles("xgbReplicaSpecs", ("Master", "Worker")),
    container="xgboost",
    replicas=lambda nodes: {"Master": 1, "Worker": nodes - 1},
    required=("Master",),
    single=("Master",),
    variables=("WORKER_PORT", "WORKER_ADDRS"),
)
JAX = Framework(
    JAXJOB,
    Roles("jaxReplicaSpecs", ("Worker",)),
    container="jax",
    replicas=lambda nodes: {"Worker": nodes},
    required=("Worker",),
    variables=("COORDINATOR_ADDRESS", "COORDINATOR_PORT", "NUM_PROCESSES", "PROCESS_ID"),
)
PADDLE = Framework(
    PADDLEJOB,
    Roles("paddleReplicaSpecs", ("Master", "Worker")),
    container="paddle",
    replicas=lambda nodes: {"Worker": nodes},
    single=("Master",),
    without_accelerators=("Master",),
    variables=("PADDLE_MASTER", "PADDLE_NNODES", "PADDLE_JOB_ID"),
    processes=0,
)
FRAMEWORKS = {each.resource.kind: each for each in (TENSORFLOW, MPI, XGBOOST, JAX, PADDLE)}
# Kinds that another component is for.
ELSEWHERE = {"PyTorchJob": "pytorch_job", "TrainJob": "train_job"}
