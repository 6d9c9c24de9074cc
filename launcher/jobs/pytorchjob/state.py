"""Reads a PyTorchJob: its state, its pods, its restarts. No I/O.

After the end, Running stays with status "False"; once Failed is True the operator writes nothing
else (training-operator v1.9, pkg/controller.v1/pytorch).
"""

from __future__ import annotations

from collections.abc import Sequence

from kfp_pytorch.launcher.constants import PYTORCH_CONTAINER
from kfp_pytorch.launcher.jobs.state import JobState, Phase, latest_transition, true_conditions
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each, name
from kfp_pytorch.launcher.kubernetes.pod_status import container_ends

# runPolicy.managedBy of a job that the Training Operator itself runs.
OPERATOR = "kubeflow.org/training-operator"
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"
# The restart policy `ExitCode` recreates a pod whose container ended with this code or more.
RETRIED_FROM = 128

# The first that is True decides. Suspended comes before Running, which may lag behind it.
_ORDER = (
    ("Failed", Phase.FAILED),
    ("Succeeded", Phase.SUCCEEDED),
    ("Suspended", Phase.QUEUED),
    ("Restarting", Phase.RESTARTING),
    ("Running", Phase.RUNNING),
    ("Created", Phase.STARTING),
)


def read_state(job: Object) -> JobState:
    """Reads the state of a PyTorchJob.

    `job`: the object; its status may be absent or incomplete.
    """
    deleting = bool(dig(job, "metadata", "deletionTimestamp"))
    conditions = each(job, "status", "conditions")
    true = true_conditions(conditions, ("Failed", "Succeeded"))
    for kind, phase in _ORDER:
        if kind == "Created" and _suspended(job):
            # The queue holds it, though the operator has not said so yet.
            break
        if kind in true:
            # Created stays True in the queue: a start begins with whatever changed last.
            of = conditions if phase is Phase.STARTING else [true[kind]]
            return JobState(
                phase=phase,
                reason=str(true[kind].get("reason") or ""),
                message=str(true[kind].get("message") or ""),
                since=latest_transition(of),
                deleting=deleting,
                warning=_warning(job) if phase is Phase.SUCCEEDED else "",
            )
    since = latest_transition(conditions)
    if _suspended(job):
        return JobState(Phase.QUEUED, since=since, deleting=deleting)
    # Only False ones, as Suspended=False after Kueue admitted it: acknowledged, not running.
    if conditions or dig(job, "status", "startTime") or dig(job, "status", "replicaStatuses"):
        return JobState(Phase.STARTING, since=since, deleting=deleting)
    return JobState(Phase.UNACKNOWLEDGED, deleting=deleting)


def expected_pods(job: Object) -> int:
    """How many pods must run for the job to be running.

    Returns the sum of the replicas; of an elastic job, the least that it may run with. 0 for a job
    that another controller runs in another cluster (MultiKueue): its pods are not here.
    """
    if dig(job, "spec", "runPolicy", "managedBy") not in (None, "", OPERATOR):
        return 0
    least = dig(job, "spec", "elasticPolicy", "minReplicas")
    if isinstance(least, int):
        return least
    counts = [replica.get("replicas") for replica in _replicas(job).values()]
    return sum(1 if count is None else int(count) for count in counts)


def first_pod(job: Object, _pods: Sequence[Object]) -> str:
    """The name of the job's first pod: the master, or worker 0 where there is no master."""
    return node_name(job, 0)


def node_name(job: Object, node: int) -> str:
    """The name of a node's pod: the master is node 0, where there is one."""
    workers = node - has_master(job)
    return f"{name(job)}-{f'worker-{workers}' if workers >= 0 else 'master-0'}"


def node_of(job: Object, pod: Object) -> int:
    """The number of the node that a pod is."""
    role, index = replica(pod)
    return index + (has_master(job) if role == "worker" else 0)


def has_master(job: Object) -> bool:
    """Whether the job has a Master."""
    return "Master" in _replicas(job)


def replica(pod: Object) -> tuple[str, int]:
    """A pod's role, `master` or `worker`, and its index."""
    index = str(dig(pod, "metadata", "labels", REPLICA_INDEX_LABEL) or "")
    role = str(dig(pod, "metadata", "labels", REPLICA_TYPE_LABEL) or "")
    return role, int(index) if index.isdecimal() else 0


def num_nodes(job: Object) -> int:
    """How many nodes the job has."""
    counts = [replica.get("replicas") for replica in _replicas(job).values()]
    return sum(count for count in counts if isinstance(count, int))


def processes_per_node(job: Object) -> int:
    """How many processes each node has; 0 where that is `auto`, `cpu` or `gpu`."""
    written = str(dig(job, "spec", "nprocPerNode") or "")
    return int(written) if written.isdecimal() else 0


def pod_templates(job: Object) -> list[Object]:
    """The pod templates of all replicas."""
    found = [replica.get("template") for replica in _replicas(job).values()]
    return [template for template in found if isinstance(template, dict)]


def recreates(job: Object, code: int) -> bool:
    """Whether the operator recreates a pod that ended with this exit code."""
    return _by_exit_code(job) and code >= RETRIED_FROM


def is_final(job: Object, pod: Object) -> bool:
    """Whether a failed pod stays as it is: Never, or ExitCode and a permanent exit code.

    Under OnFailure and Always the operator recreates evicted pods, and under ExitCode also those
    without an exit code.
    """
    policy = dig(_replicas(job), replica(pod)[0].capitalize(), "restartPolicy")
    if policy != "ExitCode":
        return bool(policy == "Never")
    ends = (end for end in container_ends(pod) if end.current)
    codes = [end.exit_code for end in ends if end.container == PYTORCH_CONTAINER]
    return any(0 < code < RETRIED_FROM for code in codes)


def restart_limit(job: Object) -> int:
    """The backoffLimit where the operator does not apply it: it does not count recreated pods."""
    limit = dig(job, "spec", "runPolicy", "backoffLimit")
    # A backoffLimit of 0 is 1 to the operator.
    return max(1, limit) if _by_exit_code(job) and isinstance(limit, int) else 0


def unread_result_advice(job: Object) -> str:
    """What to do where the job's pods were gone before they were read."""
    if dig(job, "spec", "runPolicy", "cleanPodPolicy") != "All":
        return ""
    return "With clean_pod_policy 'Running' those that succeed stay."


def _replicas(job: Object) -> dict[str, Object]:
    found = dig(job, "spec", "pytorchReplicaSpecs")
    items = found.items() if isinstance(found, dict) else ()
    return {role: replica if isinstance(replica, dict) else {} for role, replica in items}


def _by_exit_code(job: Object) -> bool:
    return any(replica.get("restartPolicy") == "ExitCode" for replica in _replicas(job).values())


def _warning(job: Object) -> str:
    """With a Master, its success is the job's, whatever the workers did."""
    roles = dig(job, "status", "replicaStatuses")
    counts = {role: dig(roles, role, "failed") for role in roles or ()}
    failed = {role: count for role, count in counts.items() if count}
    if not failed:
        return ""
    parts = ", ".join(f"{count} {role}" for role, count in sorted(failed.items()))
    return (
        f"The job counts as succeeded, for its master did; but pods of it failed: {parts}. "
        "Look at their logs before you trust the result."
    )


def _suspended(job: Object) -> bool:
    return dig(job, "spec", "runPolicy", "suspend") is True
