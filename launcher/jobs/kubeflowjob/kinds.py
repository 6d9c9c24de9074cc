"""TFJob, MPIJob, XGBoostJob, JAXJob and PaddleJob as `JobKind`s, and which one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_pytorch.launcher.constants import KUBECTL_CONTAINER
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.jobs.kind import InitContainer, JobKind
from kfp_pytorch.launcher.jobs.kubeflowjob import inputs
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS, Framework
from kfp_pytorch.launcher.jobs.kubeflowjob.manifest import longest_suffix, manifest
from kfp_pytorch.launcher.jobs.trainingoperator.kind import operator_kind

_KUBECTL = InitContainer(
    KUBECTL_CONTAINER,
    image_advice="The operator adds this container to the launcher of an MPIJob. Where its image "
    "cannot be pulled, an administrator gives another by the operator's flag "
    "--mpi-kubectl-delivery-image.",
    security_advice="The operator's own init container breaks it; it has no securityContext, and "
    "the operator has no flag for one: run MPIJobs in a namespace with a weaker policy.",
)


def _kind(framework: Framework) -> JobKind:
    return operator_kind(
        framework.resource,
        framework.roles,
        framework.container,
        parse_inputs=inputs.parse_inputs,
        longest_suffix=longest_suffix,
        build=manifest,
        processes_per_node=lambda _job: framework.processes,
        init_container=_KUBECTL if framework.resource.kind == "MPIJob" else None,
    )


KUBEFLOW_KINDS = {name: _kind(framework) for name, framework in FRAMEWORKS.items()}


def choose(given: Mapping[str, Any]) -> JobKind:
    """Return the kind that the inputs of `kubeflow_job` ask for.

    Raises InputError: if they name none, an unknown one, or two.
    """
    named = inputs.kind("kind", given.get("kind"))
    return KUBEFLOW_KINDS[inputs.kind_of(named, readers.mapping("manifest", given.get("manifest")))]
