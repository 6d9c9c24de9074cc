"""From checked inputs to the job that is submitted."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kfp_pytorch.launcher.inputs import environment
from kfp_pytorch.launcher.inputs.scheduling import named
from kfp_pytorch.launcher.inputs.scheduling.demands import Demands, Pods
from kfp_pytorch.launcher.jobs.kubeflowjob.inputs import KubeflowJobInputs, Role
from kfp_pytorch.launcher.jobs.pods import scheduled
from kfp_pytorch.launcher.jobs.pods import template as pods_template
from kfp_pytorch.launcher.jobs.pods.metadata import metadata
from kfp_pytorch.launcher.jobs.trainingoperator.inputs import (
    check_patch,
    run_policy,
)

# What the operator sets for Open MPI 4, by the names that version 5 reads in their place.
_OPEN_MPI_5 = (
    environment.variable("PRTE_MCA_plm_ssh_agent", "/etc/mpi/kubexec.sh"),
    environment.variable("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile"),
)


def manifest(
    inputs: KubeflowJobInputs,
    *,
    job_name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build the job.

    `job_name`: the job's whole name; with `longest_suffix` it fits 63 characters. `owner`: the
    owner reference, or None. Raises InputError: if a pod could not run on any cluster, or the job
    is for two schedulers.
    """
    check_patch(inputs)
    pods = Pods(job_name, labels, inputs.counts)
    demanded = scheduled.demands_of(inputs, pods)
    made = {
        "apiVersion": inputs.framework.resource.api_version,
        "kind": inputs.kind,
        "metadata": metadata(inputs, demanded, job_name, labels, annotations, owner),
    }
    if inputs.manifest:
        job = _of_manifest(inputs, made, pods, run_policy(inputs, demanded))
    else:
        job = {**made, "spec": _spec(inputs, pods, demanded)}
    named.check(inputs.scheduling, job, inputs.framework.roles.pod_templates(job))
    return job


def _spec(inputs: KubeflowJobInputs, pods: Pods, demanded: Demands) -> dict[str, Any]:
    templates = {
        name: pods_template.pod_template(
            _of_role(inputs, name, role), pods, inputs.framework.container, demanded
        )
        for name, role in inputs.replicas.items()
    }
    templates = scheduled.with_task_groups(inputs, pods, templates)
    demanded = scheduled.with_resources(inputs, pods, templates, demanded)
    spec: dict[str, Any] = {
        "runPolicy": run_policy(inputs, demanded),
        inputs.framework.roles.field: {
            name: {
                "replicas": role.count,
                "restartPolicy": inputs.restart_policy,
                "template": templates[name],
            }
            for name, role in inputs.replicas.items()
        },
    }
    if inputs.success_policy:
        spec["successPolicy"] = inputs.success_policy
    if inputs.kind == "MPIJob":
        spec |= {
            "slotsPerWorker": int(inputs.nproc_per_node),
            "mainContainer": inputs.framework.container,
        }
    return spec


def longest_suffix(inputs: KubeflowJobInputs) -> str:
    """Return the longest that the operator adds to the job's name for a pod, as `-worker-11`."""
    return inputs.framework.roles.longest_suffix(inputs.counts)


def _of_role(inputs: KubeflowJobInputs, name: str, role: Role) -> KubeflowJobInputs:
    """Return the inputs of the pods of a role."""
    given = inputs
    if name in inputs.framework.without_accelerators:
        given = _without_accelerators(given)
    if inputs.kind == "MPIJob" and name == "Launcher":
        # It only starts the others, under an account of the operator's that may do so.
        task = replace(given.task_config, resources={})
        env = environment.merged(given.env, _OPEN_MPI_5)
        given = replace(given, task_config=task, cpu="", memory="", service_account="", env=env)
    elif inputs.kind == "MPIJob":
        # The operator then has it wait for what the launcher starts in it.
        given = replace(given, command=(), args=())
    return replace(given, **role.changes)


def _without_accelerators(inputs: KubeflowJobInputs) -> KubeflowJobInputs:
    kept = {
        part: {name: amount for name, amount in amounts.items() if "/" not in name}
        for part, amounts in inputs.task_config.resources.items()
    }
    return replace(
        inputs,
        gpus_per_node=0,
        task_config=replace(inputs.task_config, resources=kept),
        placement=replace(inputs.placement, rdma=None, gpu_products=()),
    )


def _of_manifest(
    inputs: KubeflowJobInputs, made: dict[str, Any], pods: Pods, policy: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole manifest, with the identity and the job's folder in it."""
    framework, given = inputs.framework, copy.deepcopy(inputs.manifest)
    for part in ("labels", "annotations"):
        made["metadata"][part] = {**(given["metadata"].get(part) or {}), **made["metadata"][part]}
    spec = given["spec"]
    spec["runPolicy"] = {**policy, **spec["runPolicy"]}
    for replica in spec[framework.roles.field].values():
        template = replica["template"]
        of_pods = template["metadata"].get("labels") or {}
        template["metadata"]["labels"] = {**of_pods, **inputs.labels, **pods.labels}
        pods_template.add_contract(template["spec"], inputs, pods.job_name, framework.container)
    return {**made, "spec": spec}
