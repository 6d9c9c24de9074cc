"""From checked inputs to the TrainJob that is submitted.

The template of the pods is that of every job of pods. What of it is the trainer's in a TrainJob
goes there, and the rest into a patch of the runtime, as far as the cluster's Trainer has that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import NODE_CONTAINER
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling import named
from kfp_pytorch.launcher.inputs.scheduling.demands import Demands, Pods
from kfp_pytorch.launcher.jobs.pods import scheduled
from kfp_pytorch.launcher.jobs.pods.metadata import metadata
from kfp_pytorch.launcher.jobs.pods.template import pod_template
from kfp_pytorch.launcher.jobs.trainjob import patches
from kfp_pytorch.launcher.jobs.trainjob.inputs import TrainJobInputs
from kfp_pytorch.launcher.jobs.trainjob.state import INITIALIZERS

# The launcher applies active_deadline itself, on time; the Trainer's own ends the job where no
# launcher runs. In seconds.
DEADLINE_BACKSTOP = 60
# Five random characters end a pod's name.
_RANDOM_END = "-abcde"
# A container gets no whole Secret from a TrainJob, so these entries of it, where it has them.
SECRET_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CA_BUNDLE",
)
# The fields of a trainer, by those of a container.
_OF_TRAINER = {
    "image": "image",
    "command": "command",
    "args": "args",
    "env": "env",
    "resources": "resourcesPerNode",
}
# The most items that the kind takes, and characters of an image's name.
_MOST_ITEMS = 128
_LONGEST_IMAGE = 500


def manifest(
    inputs: TrainJobInputs,
    *,
    job_name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build the TrainJob.

    `job_name`: the job's whole name; with `longest_suffix` it fits 63 characters. `owner`: the
    owner reference, or None. Raises InputError: if an input asks for what the cluster's Trainer
    cannot change of the runtime's pods.
    """
    pods = Pods(job_name, labels, {NODE_CONTAINER: inputs.num_nodes})
    demanded = scheduled.demands_of(inputs, pods)
    template = _pod_template(inputs, pods, demanded)
    made = {
        "apiVersion": constants.TRAINJOB.api_version,
        "kind": constants.TRAINJOB.kind,
        "metadata": metadata(inputs, demanded, job_name, labels, annotations, owner),
        "spec": _spec(inputs, template),
    }
    named.check(inputs.scheduling, made, [template])
    patches.check_queue(made, template)
    return made


def longest_suffix(inputs: TrainJobInputs) -> str:
    """Return the longest that is added to the job's name for a pod, as `-node-0-11-abcde`."""
    nodes = f"-{NODE_CONTAINER}-0-{inputs.num_nodes - 1}{_RANDOM_END}"
    initial = [f"-{INITIALIZERS[name]}-0-0{_RANDOM_END}" for name in inputs.initializers]
    return max([nodes, *initial], key=len)


def pod_templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the template of the pods that train, as far as the job says it.

    Its lists are the job's own. The image of the runtime is called `runtime`.
    """
    trainer = job["spec"].get("trainer") or {}
    patch = patches.find(job)
    changes = dict(patch.get("spec") or {})
    named = [c for c in changes.get("containers") or [] if c.get("name") == NODE_CONTAINER]
    container = {"name": NODE_CONTAINER, "image": patches.RUNTIME_IMAGE, **(named or [{}])[0]}
    container |= {own: trainer[field] for own, field in _OF_TRAINER.items() if field in trainer}
    found = {"labels": {}, "annotations": {}, **(patch.get("metadata") or {})}
    return [{"metadata": found, "spec": {**changes, "containers": [container]}}]


def _spec(inputs: TrainJobInputs, pods: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "runtimeRef": {
            "apiGroup": constants.TRAINJOB.group,
            "kind": inputs.runtime_kind,
            "name": inputs.runtime,
        },
        "trainer": _trainer(inputs, pods),
        "initializer": copy.deepcopy(inputs.initializers),
        inputs.form.field: patches.made(inputs, pods),
        "suspend": inputs.suspend,
        "managedBy": inputs.managed_by,
    }
    if inputs.active_deadline and "activeDeadlineSeconds" in inputs.form.job:
        spec["activeDeadlineSeconds"] = inputs.active_deadline + DEADLINE_BACKSTOP
    return {key: value for key, value in spec.items() if value}


def _trainer(inputs: TrainJobInputs, pods: dict[str, Any]) -> dict[str, Any]:
    container = patches.trains(pods)
    trainer = {field: container[own] for own, field in _OF_TRAINER.items() if own in container}
    if trainer["image"] == patches.RUNTIME_IMAGE:
        del trainer["image"]
    for field in ("command", "args", "env"):
        if len(trainer.get(field, ())) > _MOST_ITEMS:
            raise InputError(
                f"{field} has {len(trainer[field])} items; a TrainJob takes at most {_MOST_ITEMS}."
            )
    if len(trainer.get("image", "")) > _LONGEST_IMAGE:
        raise InputError(
            f"image has {len(trainer['image'])} characters; a TrainJob takes at most "
            f"{_LONGEST_IMAGE}."
        )
    return trainer | {
        "numNodes": inputs.num_nodes,
        "numProcPerNode": int(inputs.nproc_per_node),
    }


def _pod_template(inputs: TrainJobInputs, pods: Pods, demanded: Demands) -> dict[str, Any]:
    known = replace(inputs, image=inputs.image or patches.RUNTIME_IMAGE)
    built = pod_template(known, pods, NODE_CONTAINER, demanded)
    container = patches.trains(built)
    secret = {"secretRef": {"name": inputs.output_secret}}
    sources = container.get("envFrom") or []
    if inputs.output_secret and secret in sources:
        container["envFrom"] = [source for source in sources if source != secret]
        container["env"] = [*_of_secret(inputs, container["env"]), *container["env"]]
    return built


def _of_secret(inputs: TrainJobInputs, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {variable["name"] for variable in given}
    return [
        {
            "name": name,
            "valueFrom": {
                "secretKeyRef": {"name": inputs.output_secret, "key": name, "optional": True}
            },
        }
        for name in SECRET_VARIABLES
        if name not in known
    ]
