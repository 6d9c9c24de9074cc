"""From checked inputs to the PyTorchJob that is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment
from kfp_pytorch.launcher.inputs.scheduling import named
from kfp_pytorch.launcher.inputs.scheduling.demands import Demands, Pods
from kfp_pytorch.launcher.jobs.pods import scheduled
from kfp_pytorch.launcher.jobs.pods import template as pods_template
from kfp_pytorch.launcher.jobs.pods.metadata import metadata
from kfp_pytorch.launcher.jobs.pytorchjob.elastic import PORT
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import PyTorchJobInputs
from kfp_pytorch.launcher.jobs.trainingoperator.inputs import check_patch, run_policy
from kfp_pytorch.launcher.jobs.trainingoperator.labels import REPLICA_INDEX_LABEL
from kfp_pytorch.launcher.jobs.trainingoperator.roles import Roles

ROLES = Roles("pytorchReplicaSpecs", ("Master", "Worker"))


def manifest(
    inputs: PyTorchJobInputs,
    *,
    job_name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build the PyTorchJob.

    `job_name`: the job's whole name; with `longest_suffix` it fits 63 characters. `owner`: the
    owner reference, or None. Raises InputError: if the job is for two
    schedulers, or `pod_template_patch` leaves a pod that no cluster would run.
    """
    least = inputs.elastic.min_nodes if inputs.elastic else 0
    pods = Pods(job_name, labels, _replicas(inputs), least)
    demanded = scheduled.demands_of(inputs, pods)
    template = pod_template(inputs, pods, demanded)
    templates = scheduled.with_task_groups(inputs, pods, dict.fromkeys(pods.roles, template))
    demanded = scheduled.with_resources(inputs, pods, templates, demanded)
    made = {
        "apiVersion": constants.PYTORCHJOB.api_version,
        "kind": constants.PYTORCHJOB.kind,
        "metadata": metadata(inputs, demanded, job_name, labels, annotations, owner),
        "spec": {
            "nprocPerNode": inputs.nproc_per_node,
            "runPolicy": run_policy(inputs, demanded),
            **({"elasticPolicy": inputs.elastic.policy(job_name)} if inputs.elastic else {}),
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": count,
                    "restartPolicy": inputs.restart_policy,
                    "template": templates[role],
                }
                for role, count in pods.roles.items()
            },
        },
    }
    named.check(inputs.scheduling, made, ROLES.pod_templates(made))
    return made


def longest_suffix(inputs: PyTorchJobInputs) -> str:
    """Return the longest that the operator adds to the job's name for a pod, as `-worker-11`."""
    if inputs.elastic:
        return ROLES.longest_suffix({"Worker": inputs.most_nodes})
    return ROLES.longest_suffix(_replicas(inputs))


def _replicas(inputs: PyTorchJobInputs) -> dict[str, int]:
    if inputs.elastic:
        return {"Worker": inputs.num_nodes}
    counts = {"Master": 1, "Worker": inputs.num_nodes - 1}
    return {role: count for role, count in counts.items() if count}


def pod_template(inputs: PyTorchJobInputs, pods: Pods, demanded: Demands) -> dict[str, Any]:
    """Build the template that every replica shares.

    Raises InputError: if the patch leaves a pod that no cluster would run.
    """
    built = pods_template.pod_template(inputs, pods, constants.PYTORCH_CONTAINER, demanded)
    check_patch(inputs)
    _add_environment(built, inputs, pods.job_name)
    spec = inputs.pod_template_patch.get("spec") or {}
    added = [each.get("name") for each in spec.get("initContainers") or []]
    if constants.INIT_CONTAINER in added:
        raise InputError(
            f"pod_template_patch may not have an init container {constants.INIT_CONTAINER!r}: the "
            "operator adds its own of that name to workers. An administrator gives that one "
            "another image by the operator's flag --pytorch-init-container-image."
        )
    return built


def _add_environment(template: dict[str, Any], inputs: PyTorchJobInputs, job_name: str) -> None:
    """Tell each worker what the operator tells only where there is a master.

    A script that torchrun does not start needs it. Where the number of nodes may change, none of it
    would stay true.
    """
    if not inputs.elastic or inputs.resizes or inputs.nproc_per_node != "1":
        return
    index = f"metadata.labels['{REPLICA_INDEX_LABEL}']"
    containers = template["spec"]["containers"]
    trains = next(each for each in containers if each["name"] == constants.PYTORCH_CONTAINER)
    trains["env"] = [
        *trains["env"],
        environment.variable("MASTER_ADDR", f"{job_name}-worker-0"),
        environment.variable("MASTER_PORT", str(PORT)),
        environment.variable("WORLD_SIZE", str(inputs.num_nodes)),
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
    ]
