"""The PyTorchJob of the Training Operator v1 as a `JobKind`."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import INIT_CONTAINER, PYTORCH_CONTAINER, PYTORCHJOB
from kfp_pytorch.launcher.jobs.kind import InitContainer
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import ROLES, longest_suffix, manifest
from kfp_pytorch.launcher.jobs.trainingoperator.kind import operator_kind
from kfp_pytorch.launcher.kubernetes.objects import Object, dig


def processes_per_node(job: Object) -> int:
    """How many processes each node has; 0 where that is `auto`, `cpu` or `gpu`."""
    written = str(dig(job, "spec", "nprocPerNode") or "")
    return int(written) if written.isdecimal() else 0


PYTORCH_JOB = operator_kind(
    PYTORCHJOB,
    ROLES,
    PYTORCH_CONTAINER,
    parse_inputs=parse_inputs,
    longest_suffix=longest_suffix,
    build=manifest,
    processes_per_node=processes_per_node,
    newer_fields={
        "spec.nprocPerNode": "Training Operator 1.7 and later have it, and tell torchrun of all "
        "nodes; ask an administrator to update the operator with its CustomResourceDefinitions.",
    },
    init_container=InitContainer(
        INIT_CONTAINER,
        image_advice="The operator adds this container to workers. Where its image cannot be "
        "pulled, an administrator gives another by the operator's flag "
        "--pytorch-init-container-image.",
        security_advice="The operator's own init container breaks it: an administrator gives that "
        "one a securityContext by the operator's flag --pytorch-init-container-template-file.",
    ),
)
