"""What TrainJobs of a cluster may change of their runtime's pods, by their schema. No I/O.

Each version of the Trainer has its own field for that, with other fields in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.kubernetes.objects import Object, dig

RUNTIME, POD_TEMPLATE, POD_SPEC = "runtimePatches", "podTemplateOverrides", "podSpecOverrides"


@dataclass(frozen=True)
class Form:
    """How a TrainJob changes its runtime's pods."""

    field: str  # the field of the job's spec that holds the changes
    job: frozenset[str]  # the fields that the job's spec has
    pod: frozenset[str]  # the fields of a pod's spec that may be changed
    container: frozenset[str]  # those of a container
    metadata: bool = True  # whether pods may be given labels and annotations


_JOB = frozenset({"initializer", "managedBy", "runtimeRef", "suspend", "trainer"})
_POD = frozenset(
    [
        "containers",
        "initContainers",
        "nodeSelector",
        "schedulingGates",
        "serviceAccountName",
        "tolerations",
        "volumes",
    ]
)
_CONTAINER = frozenset({"env", "name", "volumeMounts"})
_ADDED = {"affinity", "imagePullSecrets"}
# Of Trainer 2.0, 2.1 and 2.3; the last but for the grace period is that of 2.2.
FORMS = {
    form.field: form
    for form in (
        Form(
            RUNTIME,
            _JOB | {"activeDeadlineSeconds", RUNTIME},
            _POD | _ADDED | {"securityContext", "terminationGracePeriodSeconds"},
            _CONTAINER | {"securityContext"},
        ),
        Form(POD_TEMPLATE, _JOB | {POD_TEMPLATE}, _POD | _ADDED, _CONTAINER),
        Form(POD_SPEC, _JOB | {POD_SPEC}, _POD, _CONTAINER, metadata=False),
    )
}
CURRENT = FORMS[RUNTIME]
# Where each has the spec of a pod; `[]` stands for the items of a list.
_POD_AT = {
    RUNTIME: (
        *("[]", "trainingRuntimeSpec", "template", "spec", "replicatedJobs", "[]"),
        *("template", "spec", "template", "spec"),
    ),
    POD_TEMPLATE: ("[]", "spec"),
    POD_SPEC: ("[]",),
}


def read_form(schema: Object) -> Form | None:
    """Read the form from the OpenAPI schema of TrainJobs; None where it tells of none."""
    spec = _below(schema, "spec")
    for field, path in _POD_AT.items():
        pod = _below(spec, field, *path)
        if pod:
            container = _below(pod, "containers", "[]")
            return Form(
                field,
                job=_fields(spec),
                pod=_fields(pod) - {"targetJobs"},
                container=_fields(container),
                metadata=FORMS[field].metadata,
            )
    return None


def _below(schema: Object, *path: str) -> Object:
    for step in path:
        schema = dig(schema, "items") if step == "[]" else dig(schema, "properties", step)
    return schema if isinstance(schema, dict) else {}


def _fields(schema: Object) -> frozenset[str]:
    return frozenset(dig(schema, "properties") or ())
