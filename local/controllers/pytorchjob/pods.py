"""What a PyTorchJob's pods and services look like, after the Training Operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/pytorch/{envvar,master,elastic,initcontainer}`,
`pkg/controller.v1/common/{pod,service}` and `pkg/apis/kubeflow.org/v1/pytorch_defaults`.
"""

from __future__ import annotations

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import INIT_CONTAINER, PYTORCH_CONTAINER, PYTORCHJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.trainingoperator.labels import JOB_ROLE_LABEL, of_replica

MASTER, WORKER = "Master", "Worker"
# In place of the random order of a Go map: the master first.
REPLICA_TYPES = (MASTER, WORKER)

CONTROLLER_NAME = "pytorchjob-controller"

PORT_NAME = "pytorchjob-port"
PORT = 23456
_INIT_IMAGE = "alpine:3.10"
_INIT_TRIES = 100


def defaulted(job: Object) -> Object:
    """Return a copy of a PyTorchJob with the operator's defaults filled in."""
    job = objects.copy(job)
    spec = job["spec"]
    policy = spec["runPolicy"] = spec.get("runPolicy") or {}
    policy["cleanPodPolicy"] = policy.get("cleanPodPolicy") or "None"
    spec["pytorchReplicaSpecs"] = {
        _replica_type(given): _defaulted_replica(replica)
        for given, replica in spec["pytorchReplicaSpecs"].items()
    }
    elastic = spec.get("elasticPolicy")
    if elastic is not None:
        workers = replicas(job, WORKER)
        least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
        elastic["minReplicas"] = _first(least, most, workers)
        elastic["maxReplicas"] = _first(most, least, workers)
    if not (elastic or {}).get("nProcPerNode") and not spec.get("nprocPerNode"):
        spec["nprocPerNode"] = "auto"
    return job


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _replica_type(given: str) -> str:
    return next((known for known in REPLICA_TYPES if known.lower() == given.lower()), given)


def _defaulted_replica(replica: Object) -> Object:
    replica.setdefault("replicas", 1)
    replica["restartPolicy"] = replica.get("restartPolicy") or "OnFailure"
    container = _pytorch_container(replica)
    ports = container["ports"] = container.get("ports") or []
    if not any(port.get("name") == PORT_NAME for port in ports):
        ports.append({"name": PORT_NAME, "containerPort": PORT})
    return replica


def _pytorch_container(replica: Object) -> Object:
    containers: list[Object] = replica["template"]["spec"]["containers"]
    named = (each for each in containers if each["name"] == PYTORCH_CONTAINER)
    return next(named, containers[0])


def replicas(job: Object, replica_type: str) -> int:
    """How many pods of a replica type a defaulted job has; 0 where it has no such type."""
    spec = job["spec"]["pytorchReplicaSpecs"].get(replica_type)
    return int(spec["replicas"]) if spec else 0


def labels(job: Object, replica_type: str = "", index: int | None = None) -> dict[str, str]:
    """The operator's labels of a job's pods and services; of all of them if no type is given."""
    return of_replica(job, CONTROLLER_NAME, replica_type, index)


def replica_name(job: Object, replica_type: str, index: int) -> str:
    """The name of one pod of a job, and of its service."""
    return f"{objects.name(job)}-{replica_type.lower()}-{index}"


def pod(job: Object, replica_type: str, index: int) -> Object:
    """One pod of a defaulted job, as the operator creates it."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    replica = specs[replica_type]
    template = objects.copy(replica["template"])
    meta, spec = template.get("metadata") or {}, template["spec"]
    named = labels(job, replica_type, index)
    if replica_type == MASTER or (MASTER not in specs and index == 0):
        named[JOB_ROLE_LABEL] = "master"
    for container in spec["containers"]:
        container["env"] = [*(container.get("env") or []), *_env(job, replica_type, index)]
    if replica_type == WORKER and MASTER in specs:
        initial = _init_container(replica_name(job, MASTER, 0))
        spec["initContainers"] = [*(spec.get("initContainers") or []), initial]
    policy = replica["restartPolicy"]
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    metadata: Object = {
        "name": replica_name(job, replica_type, index),
        "labels": {**(meta.get("labels") or {}), **named},
    }
    for field in ("annotations", "finalizers"):
        if meta.get(field):
            metadata[field] = meta[field]
    return objects.controlled(constants.POD, metadata, spec, job, PYTORCHJOB)


def service(job: Object, replica_type: str, index: int) -> Object:
    """The headless service of one pod of a defaulted job."""
    named = labels(job, replica_type, index)
    replica = job["spec"]["pytorchReplicaSpecs"][replica_type]
    ports = [
        {"name": port.get("name", ""), "port": port["containerPort"]}
        for port in _pytorch_container(replica)["ports"]
    ]
    metadata = {"name": replica_name(job, replica_type, index), "labels": named}
    spec = {"clusterIP": "None", "selector": named, "ports": ports}
    return objects.controlled(constants.SERVICE, metadata, spec, job, PYTORCHJOB)


def _env(job: Object, replica_type: str, index: int) -> list[Object]:
    """The variables that the operator appends to every container's own, in its order."""
    spec = job["spec"]
    env = {"PYTHONUNBUFFERED": "1"}
    if MASTER in spec["pytorchReplicaSpecs"]:
        address, port = replica_name(job, MASTER, 0), str(_port(job, MASTER))
        rank = str(index + 1 if replica_type == WORKER else index)
        env |= {"MASTER_PORT": port, "PET_MASTER_PORT": port}
        env |= {"MASTER_ADDR": address, "PET_MASTER_ADDR": address}
        env |= {"WORLD_SIZE": str(_world_size(job)), "RANK": rank, "PET_NODE_RANK": rank}
    if spec.get("nprocPerNode"):
        env["PET_NPROC_PER_NODE"] = str(spec["nprocPerNode"])
    if spec.get("elasticPolicy") is not None:
        env |= _elastic_env(job, spec["elasticPolicy"])
    else:
        env["PET_NNODES"] = str(_total_replicas(job))
    return [{"name": name, "value": value} for name, value in env.items()]


def _elastic_env(job: Object, policy: Object) -> dict[str, str]:
    host = policy.get("rdzvHost") or replica_name(job, WORKER, 0)
    port = policy.get("rdzvPort") or _port(job, WORKER)
    env = {
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend") or "c10d",
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
    }
    if policy.get("maxRestarts") is not None:
        env["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if policy.get("nProcPerNode") is not None:
        env["PET_NPROC_PER_NODE"] = str(policy["nProcPerNode"])
    if policy.get("rdzvId") is not None:
        env["PET_RDZV_ID"] = policy["rdzvId"]
    if policy.get("rdzvConf"):
        pairs = (f"{pair.get('key', '')}={pair.get('value', '')}" for pair in policy["rdzvConf"])
        env["PET_RDZV_CONF"] = ",".join(pairs)
    if policy.get("standalone"):
        env["PET_STANDALONE"] = ""
    return env


def _port(job: Object, replica_type: str) -> int:
    ports = _pytorch_container(job["spec"]["pytorchReplicaSpecs"][replica_type])["ports"]
    return int(next(port["containerPort"] for port in ports if port.get("name") == PORT_NAME))


def _total_replicas(job: Object) -> int:
    return sum(replicas(job, each) for each in REPLICA_TYPES)


def _world_size(job: Object) -> int:
    given = str(job["spec"].get("nprocPerNode") or "")
    # `auto`, `cpu` and `gpu` count as one: the operator does not know the node.
    return _total_replicas(job) * (int(given) if given.lstrip("-").isdigit() else 1)


def _init_container(master: str) -> Object:
    script = (
        f"err=1;for i in $(seq {_INIT_TRIES}); do if nslookup {master}; then err=0 && break; fi;"
        "echo waiting for master; sleep 2; done; exit $err"
    )
    return {
        "name": INIT_CONTAINER,
        "image": _INIT_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"cpu": "100m", "memory": "20Mi"},
            "requests": {"cpu": "50m", "memory": "10Mi"},
        },
        "command": ["sh", "-c", script],
    }
