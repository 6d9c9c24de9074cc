"""What the MPIJob controller and the kubelet both know of an MPIJob's pods.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/mpi/mpijob`.
"""

from __future__ import annotations

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.trainingoperator.labels import OPERATOR_LABEL, REPLICA_TYPE_LABEL

LAUNCHER, WORKER = "Launcher", "Worker"
CONTROLLER_NAME = "mpijob-controller"
CONFIG_VOLUME = "mpi-job-config"
HOSTFILE = "hostfile"
# What the operator sets, for Open MPI up to 4.
AGENT_ENV = "OMPI_MCA_plm_rsh_agent"
HOSTFILE_ENV = "OMPI_MCA_orte_default_hostfile"


def is_pod(pod: Object) -> bool:
    """Whether a pod is one of an MPIJob."""
    return objects.labels(pod).get(OPERATOR_LABEL) == CONTROLLER_NAME


def is_worker(pod: Object) -> bool:
    """Whether a pod is a worker of an MPIJob."""
    return is_pod(pod) and objects.labels(pod).get(REPLICA_TYPE_LABEL) == WORKER.lower()
