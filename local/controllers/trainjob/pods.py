"""What a TrainJob's pods and service look like, after Trainer 2.3 and JobSet 0.12.

Source: kubeflow/trainer v2.3.0, `pkg/runtime/framework/plugins/{torch,jobset}`;
kubernetes-sigs/jobset v0.12.0, `pkg/controllers`.
"""

from __future__ import annotations

import math

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import NODE_CONTAINER, TRAINJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.quantities import quantity

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
INDEX = "batch.kubernetes.io/job-completion-index"
PORT = 29500
RESERVED = tuple(
    f"PET_{name}"
    for name in ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
)
_MANAGER = "trainer.kubeflow.org/trainjob-controller"
# What a Job has without a limit of its own.
_BACKOFF_LIMIT = 6


def defaulted(job: Object) -> Object:
    """Return a copy of a TrainJob with the webhook's defaults filled in."""
    job = objects.copy(job)
    spec = job["spec"]
    spec["suspend"] = bool(spec.get("suspend"))
    spec["managedBy"] = spec.get("managedBy") or _MANAGER
    reference = spec["runtimeRef"]
    reference["apiGroup"] = reference.get("apiGroup") or TRAINJOB.group
    reference["kind"] = reference.get("kind") or constants.CLUSTER_TRAINING_RUNTIME.kind
    return job


def is_ours(job: Object) -> bool:
    """Whether the Trainer itself runs a job, and not another controller."""
    return bool(defaulted(job)["spec"]["managedBy"] == _MANAGER)


def nodes(job: Object, runtime: Object) -> int:
    """How many nodes train."""
    given = (job["spec"].get("trainer") or {}).get("numNodes")
    policy = runtime["spec"].get("mlPolicy") or {}
    return int(policy.get("numNodes", 1) if given is None else given)


def backoff_limit(template: Object) -> int:
    """How many failures of pods are too many, by the template of their Job."""
    given = (template.get("spec") or {}).get("backoffLimit")
    return _BACKOFF_LIMIT if given is None else int(given)


def job_name(job: Object) -> str:
    """The name of the Job that makes the pods on a cluster."""
    return f"{objects.name(job)}-{NODE_CONTAINER}-0"


def pod(job: Object, template: Object, index: int, count: int) -> Object:
    """One pod of a defaulted job, with a name to be generated.

    `template`: that of the Job. `count`: how many nodes train.
    """
    of_pods = objects.copy(template["spec"]["template"])
    meta, spec = of_pods.get("metadata") or {}, of_pods["spec"]
    host = f"{job_name(job)}-{index}"
    spec["restartPolicy"] = spec.get("restartPolicy") or "OnFailure"
    spec |= {"hostname": host, "subdomain": objects.name(job)}
    for container in spec["containers"]:
        if container["name"] == NODE_CONTAINER:
            _train(container, job, count)
        variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": _field("labels")}
        container["env"] = [*(container.get("env") or []), variable]
    metadata = {
        "generateName": f"{host}-",
        "labels": {**(meta.get("labels") or {}), **_labels(job, index)},
        "annotations": {**(meta.get("annotations") or {}), **_annotations(job, index)},
    }
    return objects.controlled(constants.POD, metadata, spec, job, TRAINJOB)


def _labels(job: Object, index: int) -> dict[str, str]:
    """The labels of JobSet and Job of one pod."""
    return {
        "batch.kubernetes.io/job-name": job_name(job),
        "job-name": job_name(job),
        **_annotations(job, index),
    }


def _annotations(job: Object, index: int) -> dict[str, str]:
    """The annotations of JobSet and Job of one pod."""
    return {
        INDEX: str(index),
        JOBSET_LABEL: objects.name(job),
        "jobset.sigs.k8s.io/job-index": "0",
        "jobset.sigs.k8s.io/replicatedjob-name": NODE_CONTAINER,
        "jobset.sigs.k8s.io/replicatedjob-replicas": "1",
        "jobset.sigs.k8s.io/restart-attempt": "0",
    }


def service(job: Object) -> Object:
    """The headless service that gives the pods their host names."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {JOBSET_LABEL: objects.name(job)},
    }
    return objects.controlled(constants.SERVICE, {"name": objects.name(job)}, spec, job, TRAINJOB)


def _train(container: Object, job: Object, count: int) -> None:
    """Put into the container that trains what the TrainJob says of it."""
    trainer = job["spec"].get("trainer")
    if trainer is None:
        return
    for field in ("image", "command", "args"):
        if trainer.get(field) is not None:
            container[field] = trainer[field]
    if trainer.get("resourcesPerNode"):
        container["resources"] = trainer["resourcesPerNode"]
    given = {each["name"]: each for each in trainer.get("env") or []}
    own = [each for each in container.get("env") or [] if each["name"] not in given]
    container["env"] = [*own, *given.values(), *_torch(container, job, trainer, count)]
    ports = container.get("ports") or []
    container["ports"] = [*ports, {"containerPort": PORT, "protocol": "TCP"}]


def _torch(container: Object, job: Object, trainer: Object, count: int) -> list[Object]:
    """The variables of torchrun, in the Trainer's order."""
    processes = trainer.get("numProcPerNode") or _processes(container.get("resources") or {})
    values = {
        "PET_NNODES": str(count),
        "PET_NPROC_PER_NODE": str(processes),
        "PET_NODE_RANK": _field("annotations"),
        "PET_MASTER_ADDR": f"{job_name(job)}-0.{objects.name(job)}",
        "PET_MASTER_PORT": str(PORT),
    }
    return [
        {"name": name, "value" if isinstance(value, str) else "valueFrom": value}
        for name, value in values.items()
    ]


def _field(of: str) -> Object:
    return {"fieldRef": {"fieldPath": f"metadata.{of}['{INDEX}']"}}


def _processes(resources: Object) -> int:
    """One for each GPU, else for each CPU."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    gpus = [amount for name, amount in limits.items() if "gpu" in name.rpartition("/")[2]]
    cpu = requests.get("cpu") or limits.get("cpu") or "1"
    return max(1, math.ceil(quantity(gpus[0] if gpus else cpu)))
