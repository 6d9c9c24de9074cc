"""The labels that the Training Operator gives to pods. No I/O."""

from __future__ import annotations

from kfp_pytorch.launcher.kubernetes.objects import Object, dig

JOB_NAME_LABEL = "training.kubeflow.org/job-name"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"


def replica(pod: Object) -> tuple[str, int]:
    """A pod's role, such as `master` or `worker`, and its index."""
    index = str(dig(pod, "metadata", "labels", REPLICA_INDEX_LABEL) or "")
    role = str(dig(pod, "metadata", "labels", REPLICA_TYPE_LABEL) or "")
    return role, int(index) if index.isdecimal() else 0


def pod_selector(job_name: str) -> str:
    """The selector of the pods of a job of this name."""
    return f"{JOB_NAME_LABEL}={job_name}"
