"""Reads a job of the Training Operator: its state and its restarts. No I/O.

After the end, Running stays with status "False"; once Failed is True the operator writes nothing
else (training-operator v1.9, pkg/controller.v1).
"""

from __future__ import annotations

from kfp_pytorch.launcher.jobs.state import JobState, Phase, latest_transition, true_conditions
from kfp_pytorch.launcher.jobs.trainingoperator import labels
from kfp_pytorch.launcher.jobs.trainingoperator.roles import Roles
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each
from kfp_pytorch.launcher.kubernetes.pod_status import container_ends

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


def read_state(roles: Roles, job: Object) -> JobState:
    """Reads the state of a job.

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
                warning=_warning(roles, job) if phase is Phase.SUCCEEDED else "",
            )
    since = latest_transition(conditions)
    if _suspended(job):
        return JobState(Phase.QUEUED, since=since, deleting=deleting)
    # Only False ones, as Suspended=False after Kueue admitted it: acknowledged, not running.
    if conditions or dig(job, "status", "startTime") or dig(job, "status", "replicaStatuses"):
        return JobState(Phase.STARTING, since=since, deleting=deleting)
    return JobState(Phase.UNACKNOWLEDGED, deleting=deleting)


def recreates(roles: Roles, job: Object, code: int) -> bool:
    """Whether the operator recreates a pod that ended with this exit code."""
    return _by_exit_code(roles, job) and code >= RETRIED_FROM


def is_final(roles: Roles, container: str, job: Object, pod: Object) -> bool:
    """Whether a failed pod stays as it is: Never, or ExitCode and a permanent exit code.

    Under OnFailure and Always the operator recreates evicted pods, and under ExitCode also those
    without an exit code.
    """
    role = labels.replica(pod)[0]
    policies = {name.lower(): spec.get("restartPolicy") for name, spec in roles.specs(job).items()}
    if policies.get(role) != "ExitCode":
        return policies.get(role) == "Never"
    ends = (end for end in container_ends(pod) if end.current)
    codes = [end.exit_code for end in ends if end.container == container]
    return any(0 < code < RETRIED_FROM for code in codes)


def restart_limit(roles: Roles, job: Object) -> int:
    """The backoffLimit where the operator does not apply it: it does not count recreated pods."""
    limit = dig(job, "spec", "runPolicy", "backoffLimit")
    # A backoffLimit of 0 is 1 to the operator.
    return max(1, limit) if _by_exit_code(roles, job) and isinstance(limit, int) else 0


def unread_result_advice(job: Object) -> str:
    """What to do where the job's pods were gone before they were read."""
    if dig(job, "spec", "runPolicy", "cleanPodPolicy") != "All":
        return ""
    return "With clean_pod_policy 'Running' those that succeed stay."


def _by_exit_code(roles: Roles, job: Object) -> bool:
    specs = roles.specs(job).values()
    return any(spec.get("restartPolicy") == "ExitCode" for spec in specs)


def _warning(roles: Roles, job: Object) -> str:
    """The success of the first role's pods is the job's, whatever the others did."""
    found = dig(job, "status", "replicaStatuses")
    counts = {role: dig(found, role, "failed") for role in found or ()}
    failed = {role: count for role, count in counts.items() if count}
    if not failed:
        return ""
    parts = ", ".join(f"{count} {role}" for role, count in sorted(failed.items()))
    first = next(iter(roles.specs(job)), roles.names[0]).lower()
    return (
        f"The job counts as succeeded, for its {first} did; but pods of it failed: {parts}. "
        "Look at their logs before you trust the result."
    )


def _suspended(job: Object) -> bool:
    return dig(job, "spec", "runPolicy", "suspend") is True
