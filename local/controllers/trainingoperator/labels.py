"""The labels of a job's pods and services, after the Training Operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/apis/kubeflow.org/v1/common_types`.
"""

from __future__ import annotations

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object

_LABEL = "training.kubeflow.org"
OPERATOR_LABEL = f"{_LABEL}/operator-name"
JOB_NAME_LABEL = f"{_LABEL}/job-name"
REPLICA_TYPE_LABEL = f"{_LABEL}/replica-type"
REPLICA_INDEX_LABEL = f"{_LABEL}/replica-index"
JOB_ROLE_LABEL = f"{_LABEL}/job-role"


def of_replica(
    job: Object, controller: str, replica_type: str = "", index: int | None = None
) -> dict[str, str]:
    """The operator's labels of a job's pods and services; of all of them if no type is given."""
    found = {OPERATOR_LABEL: controller, JOB_NAME_LABEL: objects.name(job)}
    if replica_type:
        found[REPLICA_TYPE_LABEL] = replica_type.lower()
    if index is not None:
        found[REPLICA_INDEX_LABEL] = str(index)
    return found


def of_type(replica_type: str, found: list[Object]) -> list[Object]:
    """Those of the pods or services that are of a replica type."""
    label = replica_type.lower()
    return [each for each in found if objects.labels(each).get(REPLICA_TYPE_LABEL) == label]
