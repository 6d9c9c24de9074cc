"""From a job's conditions to its state. No I/O.

A condition's place in the list means nothing: it is found by its type and counts when its status
is "True". After the end, Running stays with status "False"; once Failed is True the operator
writes nothing else (training-operator v1.9, pkg/controller.v1/pytorch).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kfp_pytorch.launcher.kubernetes.objects import Object, dig

# runPolicy.managedBy of a job that the Training Operator itself runs.
OPERATOR = "kubeflow.org/training-operator"


class Phase(Enum):
    """Where a job is in its life."""

    UNACKNOWLEDGED = "unacknowledged"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the job will not change any more."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True)
class JobState:
    """A job's state.

    Attributes:
        phase: Where it is in its life.
        reason: The reason of the condition that says so, or empty.
        message: The message of that condition, or empty.
        since: The condition's last transition, as the cluster wrote it, or empty.
        deleting: Whether somebody asked for its deletion.
        warning: What a person must know of a success, or empty.
    """

    phase: Phase
    reason: str = ""
    message: str = ""
    since: str = ""
    deleting: bool = False
    warning: str = ""


# The first that is True decides. Suspended comes before Running, which may lag behind it.
_ORDER = (
    ("Failed", Phase.FAILED),
    ("Succeeded", Phase.SUCCEEDED),
    ("Suspended", Phase.QUEUED),
    ("Restarting", Phase.RESTARTING),
    ("Running", Phase.RUNNING),
    ("Created", Phase.STARTING),
)

_ENDS = ("Failed", "Succeeded")


def job_state(job: Object) -> JobState:
    """Reads the state of a PyTorchJob.

    Args:
        job: The object; its status may be absent or incomplete.

    Returns:
        Its state.
    """
    status = job.get("status") or {}
    deleting = bool((job.get("metadata") or {}).get("deletionTimestamp"))
    conditions = [c for c in status.get("conditions") or [] if isinstance(c, dict)]
    true = _true(conditions)
    for kind, phase in _ORDER:
        if kind == "Created" and _suspended(job):
            # The queue holds it, though the operator has not said so yet.
            break
        if kind in true:
            # Created stays True in the queue: a start begins with whatever changed last.
            since = _latest(conditions if phase is Phase.STARTING else [true[kind]])
            return _state(phase, true[kind], since, deleting, status)
    if _suspended(job):
        return JobState(Phase.QUEUED, since=_latest(conditions), deleting=deleting)
    # Only False ones, as Suspended=False after Kueue let it go: seen by the operator, not running.
    seen = conditions or status.get("startTime") or status.get("replicaStatuses")
    if not seen:
        return JobState(Phase.UNACKNOWLEDGED, deleting=deleting)
    return JobState(Phase.STARTING, since=_latest(conditions), deleting=deleting)


def expected_pods(job: Object) -> int:
    """How many pods must run for the job to be running whole.

    Args:
        job: A PyTorchJob.

    Returns:
        The sum of the replicas; of an elastic job, the least that it may run with. 0 for a job
        that another controller runs in another cluster (MultiKueue): its pods are not here.
    """
    spec = job.get("spec") or {}
    if (spec.get("runPolicy") or {}).get("managedBy") not in (None, "", OPERATOR):
        return 0
    least = (spec.get("elasticPolicy") or {}).get("minReplicas")
    if isinstance(least, int):
        return least
    counts = [
        dig(replica, "replicas") for replica in (spec.get("pytorchReplicaSpecs") or {}).values()
    ]
    return sum(1 if count is None else int(count) for count in counts)


def first_pod(job: Object) -> str:
    """The name of the job's first pod: the master, or worker 0 where there is no master."""
    role = "master" if "Master" in (dig(job, "spec", "pytorchReplicaSpecs") or {}) else "worker"
    return f"{job['metadata']['name']}-{role}-0"


def _true(conditions: list[Object]) -> dict[str, Object]:
    """The conditions that are True, by type.

    There should be one of a type. Of several, the one that changed last counts; an end is final.
    """
    found: dict[str, Object] = {}
    for condition in sorted(conditions, key=lambda c: (_changed(c), _is_true(c))):
        kind = str(condition.get("type"))
        if not (kind in _ENDS and kind in found and _is_true(found[kind])):
            found[kind] = condition
    return {kind: condition for kind, condition in found.items() if _is_true(condition)}


def _is_true(condition: Object) -> bool:
    return str(condition.get("status")) == "True"


def _changed(condition: Object) -> str:
    return str(condition.get("lastTransitionTime") or "")


def _latest(conditions: list[Object]) -> str:
    # All in the same form and zone: they compare as texts.
    return max(map(_changed, conditions), default="")


def _state(phase: Phase, condition: Object, since: str, deleting: bool, status: Object) -> JobState:
    return JobState(
        phase=phase,
        reason=str(condition.get("reason") or ""),
        message=str(condition.get("message") or ""),
        since=since,
        deleting=deleting,
        warning=_warning(status) if phase is Phase.SUCCEEDED else "",
    )


def _warning(status: Object) -> str:
    """With a Master, its success is the job's, whatever the workers did."""
    failed = {
        role: counts["failed"]
        for role, counts in (status.get("replicaStatuses") or {}).items()
        if isinstance(counts, dict) and counts.get("failed")
    }
    if not failed:
        return ""
    parts = ", ".join(f"{count} {role}" for role, count in sorted(failed.items()))
    return (
        f"The job counts as succeeded, for its master did; but pods of it failed: {parts}. "
        "Look at their logs before you trust the result."
    )


def _suspended(job: Object) -> bool:
    policy = (job.get("spec") or {}).get("runPolicy") or {}
    return policy.get("suspend") is True
