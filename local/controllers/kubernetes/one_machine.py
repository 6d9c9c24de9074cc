"""Refuses what this machine, the cluster's one node, can never run.

A cluster waits: a node may be added, a Secret may be created. Here that is a person's to do, so a
job that cannot run is refused at once, by a validating webhook, with the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kfp_pytorch.launcher.constants import (
    CLAIM,
    CONFIG_MAP,
    JAXJOB,
    PADDLEJOB,
    POD,
    PYTORCHJOB,
    TFJOB,
    XGBOOSTJOB,
    Kind,
)
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import NODE, SECRET
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes.node import NODE_NAME, requests
from kfp_pytorch.local.controllers.kubernetes.pod_admission import written
from kfp_pytorch.local.controllers.kubernetes.scheduler import SCHEDULER, is_selected
from kfp_pytorch.local.quantities import quantity

WEBHOOK = "one-machine.kfp-pytorch.local"
_WITHOUT_GPUS = (
    "`kfp-pytorch run … --local --cpu` runs without GPUs; or ask for no more than there are, by "
    "gpus_per_node, gpus or the limits of the task."
)
_LESS = "Ask for less: cpu, memory, or fewer pods."
# Kinds of the Training Operator that nothing here runs.
_NOT_RUN = (TFJOB, XGBOOSTJOB, JAXJOB, PADDLEJOB)
# The volumes that are of an object: the field of the object's name, and its kind.
_VOLUMES = {
    "secret": ("secretName", SECRET),
    "configMap": ("name", CONFIG_MAP),
    "persistentVolumeClaim": ("claimName", CLAIM),
}
_VARIABLES = {
    "secretKeyRef": SECRET,
    "secretRef": SECRET,
    "configMapKeyRef": CONFIG_MAP,
    "configMapRef": CONFIG_MAP,
}


def install(api: Api) -> None:
    """Check every new job, and every new pod that no job has."""
    api.add_webhook(PYTORCHJOB, partial(_check_job, api))
    api.add_webhook(POD, partial(_check_pod, api))
    for kind in _NOT_RUN:
        api.add_webhook(kind, partial(_refuse, kind))


def _refuse(kind: Kind, _job: Object) -> None:
    raise errors.denied(
        WEBHOOK,
        f"the cluster of this machine runs no {kind.kind}: of the Training Operator's kinds it "
        "runs PyTorchJobs, by the component pytorch_job, and MPIJobs. To run a step here and its "
        "job on a cluster that has the operator: `kfp-pytorch run … --kubeconfig FILE`.",
    )


def _check_job(api: Api, job: Object) -> None:
    if objects.metadata(job).get("resourceVersion"):
        return  # it is an update
    pods = list(_pods(job))
    elastic = "elasticPolicy" in job["spec"]
    check_pods(api, job, pods, pods[:1] if elastic else pods)


def check_pods(api: Api, job: Object, pods: list[Object], together: list[Object]) -> None:
    """Refuse a job whose pods cannot run here.

    `together`: those of the pods that must run at the same time. Raises errors.ApiError: 403.
    """
    wrong = [
        *_too_large(api, together, "its pods ask"),
        *(
            why
            for pod in pods
            for why in (
                *_unselected(api, pod),
                *_without_scheduler(pod),
                *_missing(api, job, pod),
                *_without_command(pod),
            )
        ),
    ]
    if wrong:
        raise errors.denied(WEBHOOK, " ".join(dict.fromkeys(wrong)))


def _check_pod(api: Api, pod: Object) -> None:
    meta, spec = objects.metadata(pod), pod["spec"]
    if meta.get("resourceVersion") or spec.get("schedulerName", SCHEDULER) != SCHEDULER:
        return
    large = " ".join(_too_large(api, [pod], "the pod asks"))
    # Not in the name of a webhook: whoever waits for one that denies may wait long.
    why = f"maximum usage per Pod: {large}" if large else " ".join(_unselected(api, pod))
    if why:
        shown = meta.get("generateName") or objects.name(pod)
        raise errors.forbidden(POD, shown, why)


def _pods(job: Object) -> Iterator[Object]:
    """The pods of a job, as its templates say."""
    for replica in (job["spec"].get("pytorchReplicaSpecs") or {}).values():
        template = (replica or {}).get("template") or {}
        if (template.get("spec") or {}).get("containers"):
            yield from [template] * int(replica.get("replicas") or 1)


def _too_large(api: Api, pods: list[Object], who: str) -> Iterator[str]:
    """What pods that run at the same time request beyond what this machine has."""
    node = api.find(NODE, "", NODE_NAME)
    if node is None:
        return
    wanted: dict[str, float] = {}
    for pod in pods:
        for name, amount in requests(pod).items():
            wanted[name] = wanted.get(name, 0.0) + amount
    for name, amount in sorted(wanted.items()):
        has = node["status"]["allocatable"].get(name, "0")
        if amount > quantity(has) + 1e-9:
            way_out = _WITHOUT_GPUS if "/" in name else _LESS
            together = f" ({len(pods)} pods together)" if len(pods) > 1 else ""
            yield (
                f"{who} for {written(amount)} {name}{together}, and this machine has {has}. "
                f"{way_out}"
            )


def _unselected(api: Api, pod: Object) -> Iterator[str]:
    node = api.find(NODE, "", NODE_NAME)
    if node and not is_selected(pod, objects.labels(node)):
        yield (
            "the node_selector or affinity fits no node: the one node is this machine. Leave it "
            "out; --cpu does so, too."
        )


def _without_scheduler(pod: Object) -> Iterator[str]:
    asked = pod["spec"].get("schedulerName") or SCHEDULER
    if asked != SCHEDULER:
        yield (
            f"its pods are for the scheduler {asked!r}, and this machine has only "
            f"{SCHEDULER!r}, so they would wait for ever. Leave the input scheduling out here."
        )


def _without_command(pod: Object) -> Iterator[str]:
    for container in pod["spec"]["containers"]:
        if not container.get("command"):
            yield (
                f"the container {container['name']!r} has no command, and the entry point of its "
                "image is not known here: no image is run, but this Python. Give a command."
            )


def _missing(api: Api, job: Object, pod: Object) -> Iterator[str]:
    """The objects that a pod needs to start, and that are not there."""
    for kind, name, key in references(pod["spec"]):
        found = api.find(kind, objects.namespace(job), name)
        yield from [why for why in [lacking(kind, name, key, found)] if why]


def lacking(kind: Kind, name: str, key: str, found: Object | None) -> str:
    """Why an object that a pod refers to does not do; empty where it does.

    `key`: a key that it must have; empty for none. `found`: the object, None where there is none.
    """
    if found is None:
        option = f"--claim {name}=FOLDER" if kind == CLAIM else "--secrets FILE"
        return (
            f"there is no {kind.kind} {name!r}. Give it: `kfp-pytorch run … --local {option}`, or "
            "create it in the local cluster with kubectl."
        )
    keys = sorted({**(found.get("data") or {}), **(found.get("binaryData") or {})})
    if key and key not in keys:
        return f"the {kind.kind} {name!r} has no key {key!r}; it has {', '.join(keys) or 'none'}."
    return ""


def references(spec: Object) -> Iterator[tuple[Kind, str, str]]:
    """The objects that a pod's spec cannot do without: kind, name, and key or an empty string."""
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        sources = [each.get("valueFrom") or {} for each in container.get("env") or []]
        for source in [*sources, *(container.get("envFrom") or [])]:
            for field, kind in _VARIABLES.items():
                wanted = source.get(field)
                if wanted and not wanted.get("optional"):
                    yield kind, wanted.get("name", ""), wanted.get("key", "")
    for volume in spec.get("volumes") or []:
        for field, (name, kind) in _VOLUMES.items():
            wanted = volume.get(field)
            if wanted and not wanted.get("optional"):
                yield kind, wanted.get(name, ""), ""
