"""What an MPIJob's pods look like, after the Training Operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/mpi` and
`pkg/apis/kubeflow.org/v1/{mpi_defaults,mpi_validation}`.
"""

from __future__ import annotations

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import KUBECTL_CONTAINER, MPIJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.trainingoperator.labels import JOB_ROLE_LABEL, of_replica
from kfp_pytorch.local.controllers.trainingoperator.mpi import (
    AGENT_ENV,
    CONFIG_VOLUME,
    CONTROLLER_NAME,
    HOSTFILE,
    HOSTFILE_ENV,
    LAUNCHER,
    WORKER,
)

ROLES = (LAUNCHER, WORKER)
KUBEXEC, DISCOVER_HOSTS = "kubexec.sh", "discover_hosts.sh"
_CONFIG_PATH = "/etc/mpi"
_KUBECTL_VOLUME, KUBECTL_PATH = "mpi-job-kubectl", "/opt/kube"
_KUBECTL_IMAGE = "kubeflow/kubectl-delivery:latest"
_OF_KUBECTL = {"cpu": "100m", "ephemeral-storage": "5Gi", "memory": "512Mi"}
_SCRIPT, _FILE = 0o555, 0o444


def problem(job: Object) -> str:
    """Why the operator never runs a job; empty if it does."""
    specs = job["spec"]["mpiReplicaSpecs"]
    for role, replica in specs.items():
        containers = (((replica or {}).get("template") or {}).get("spec") or {}).get("containers")
        if not containers:
            return f"MPIReplicaSpecs is not valid: containers definition expected in {role}"
        if role not in ROLES:
            return f"MPIReplicaType is {role} but must be one of [{' '.join(ROLES)}]"
        if not all(each.get("image") for each in containers):
            return f"MPIReplicaSpec is not valid: Image is undefined in the container of {role}"
        if role == LAUNCHER and replica.get("replicas") not in (None, 1):
            return "MPIReplicaSpec is not valid: There must be only 1 launcher replica"
    if LAUNCHER not in specs:
        return "MPIReplicaSpec is not valid: Master ReplicaSpec must be present"
    return ""


def defaulted(job: Object) -> Object:
    """Return a copy of an MPIJob with the operator's defaults filled in."""
    job = objects.copy(job)
    spec = job["spec"]
    policy = spec["runPolicy"] = spec.get("runPolicy") or {}
    clean = policy.get("cleanPodPolicy") or spec.get("cleanPodPolicy") or "None"
    policy["cleanPodPolicy"] = spec["cleanPodPolicy"] = clean
    for role, replica in spec["mpiReplicaSpecs"].items():
        replica.setdefault("replicas", 1 if role == LAUNCHER else 0)
        replica["restartPolicy"] = replica.get("restartPolicy") or "Never"
    return job


def labels(job: Object, role: str = "", index: int | None = None) -> dict[str, str]:
    """The operator's labels of a job's pods; of all of them if no role is given."""
    return of_replica(job, CONTROLLER_NAME, role, index)


def workers(job: Object) -> int:
    """How many workers a defaulted job has."""
    replica = job["spec"]["mpiReplicaSpecs"].get(WORKER)
    return int(replica["replicas"]) if replica else 0


def launcher_name(job: Object) -> str:
    """The name of the launcher, and of its account and role."""
    return f"{objects.name(job)}-launcher"


def worker_name(job: Object, index: int) -> str:
    """The name of a worker, which is its host's name to MPI."""
    return f"{objects.name(job)}-worker-{index}"


def config_name(job: Object) -> str:
    """The name of the ConfigMap with the hostfile and the scripts."""
    return f"{objects.name(job)}-config"


def launcher_has_gpus(job: Object) -> bool:
    """Whether the launcher is a host, too."""
    spec = job["spec"]["mpiReplicaSpecs"][LAUNCHER]["template"]["spec"]
    limits = ((each.get("resources") or {}).get("limits") or {} for each in spec["containers"])
    return any("gpu" in name for of in limits for name in of)


def launcher(job: Object) -> Object:
    """The launcher of a defaulted job."""
    meta, spec = _template(job, LAUNCHER)
    meta["labels"] |= {**labels(job, LAUNCHER), JOB_ROLE_LABEL: "master"}
    meta["name"] = launcher_name(job)
    spec["serviceAccountName"] = spec.get("serviceAccountName") or launcher_name(job)
    container = spec["containers"][0]
    container["env"] = [*(container.get("env") or []), *_env(job, container)]
    mounts = [
        {"name": _KUBECTL_VOLUME, "mountPath": KUBECTL_PATH},
        {"name": CONFIG_VOLUME, "mountPath": _CONFIG_PATH},
    ]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), *mounts]
    initial = _kubectl_container(job, mounts)
    spec["initContainers"] = [*(spec.get("initContainers") or []), initial]
    spec["volumes"] = [
        *(spec.get("volumes") or []),
        {"name": _KUBECTL_VOLUME, "emptyDir": {}},
        _config_volume(job, {KUBEXEC: _SCRIPT, HOSTFILE: _FILE, DISCOVER_HOSTS: _SCRIPT}),
    ]
    return objects.controlled(constants.POD, meta, spec, job, MPIJOB)


def worker(job: Object, index: int) -> Object:
    """One worker of a defaulted job."""
    meta, spec = _template(job, WORKER)
    meta["labels"] |= labels(job, WORKER, index)
    meta["name"] = worker_name(job, index)
    container = spec["containers"][0]
    if not container.get("command"):
        container |= {"command": ["sleep"], "args": ["365d"]}
    mount = {"name": CONFIG_VOLUME, "mountPath": _CONFIG_PATH}
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    spec["volumes"] = [*(spec.get("volumes") or []), _config_volume(job, {KUBEXEC: _SCRIPT})]
    return objects.controlled(constants.POD, meta, spec, job, MPIJOB)


def _template(job: Object, role: str) -> tuple[Object, Object]:
    """The metadata and the spec of a role's pods, as the job has them."""
    replica = job["spec"]["mpiReplicaSpecs"][role]
    template = objects.copy(replica["template"])
    given, spec = template.get("metadata") or {}, template["spec"]
    policy = replica["restartPolicy"]
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    meta: Object = {"labels": dict(given.get("labels") or {})}
    if given.get("annotations"):
        meta["annotations"] = given["annotations"]
    return meta, spec


def _env(job: Object, container: Object) -> list[Object]:
    """The variables that the operator appends to the launcher's own, in its order."""
    own = {each["name"] for each in container.get("env") or []}
    agent = f"{_CONFIG_PATH}/{KUBEXEC}"
    env = {AGENT_ENV: agent, HOSTFILE_ENV: f"{_CONFIG_PATH}/{HOSTFILE}"}
    if not launcher_has_gpus(job):
        env |= {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}
    of_intel = {"I_MPI_HYDRA_BOOTSTRAP": "rsh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent}
    env |= {name: value for name, value in of_intel.items() if name not in own}
    return [{"name": name, "value": value} for name, value in env.items()]


def _kubectl_container(job: Object, mounts: list[Object]) -> Object:
    env = {"TARGET_DIR": KUBECTL_PATH, "NAMESPACE": objects.namespace(job)}
    return {
        "name": KUBECTL_CONTAINER,
        "image": _KUBECTL_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": mounts,
        "resources": {"limits": dict(_OF_KUBECTL), "requests": dict(_OF_KUBECTL)},
    }


def _config_volume(job: Object, files: dict[str, int]) -> Object:
    items = [{"key": name, "path": name, "mode": mode} for name, mode in files.items()]
    return {"name": CONFIG_VOLUME, "configMap": {"name": config_name(job), "items": items}}
