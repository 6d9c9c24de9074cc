"""One reconciliation of a TrainJob, as a pure function, after Trainer 2.3, JobSet and Job.

Its states come in the order in which these controllers write them, each in a reconciliation of
its own where they do so in writes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kfp_pytorch.launcher.constants import NODE_CONTAINER
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import condition, dated, is_ready, phase
from kfp_pytorch.local.controllers.trainjob import pods

_COUNTS = ("active", "failed", "ready", "succeeded", "suspended")


@dataclass
class Plan:
    """What a reconciliation does, in this order."""

    status: Object  # the job's status afterwards
    delete_pods: list[str] = field(default_factory=list)  # names of pods to delete
    create: list[Object] = field(default_factory=list)  # pods and the service to create
    failed: bool = False  # whether the job of its pods has failed now
    requeue_at: datetime | None = None  # when to reconcile again though nothing has changed


@dataclass(frozen=True)
class Observed:
    """What there is of a job."""

    job: Object  # the TrainJob, defaulted
    template: Object  # the template of its Job, its patches included
    nodes: int  # how many pods train
    pods: list[Object]
    has_service: bool
    now: datetime
    has_failed: bool = False  # whether the job of its pods has failed before

    @property
    def active(self) -> list[Object]:
        """The pods that have not ended, and are not told to."""
        ended = ("Succeeded", "Failed")
        return [p for p in self.pods if not objects.is_terminating(p) and phase(p) not in ended]

    @property
    def succeeded(self) -> dict[str, Object]:
        """The pods that succeeded, by their index."""
        found = [p for p in self.pods if phase(p) == "Succeeded" and not objects.is_terminating(p)]
        return {index(p): p for p in found}

    @property
    def failures(self) -> int:
        """How often a pod failed, or a container was started again in one."""
        failed = sum(phase(p) == "Failed" and not objects.is_terminating(p) for p in self.pods)
        return failed + sum(map(_restarts, self.active))


def reconcile(seen: Observed) -> Plan:
    """Decide what to do about a TrainJob: nothing once it has ended."""
    status = objects.copy(seen.job.get("status") or {})
    if objects.is_terminating(seen.job) or _ended(seen.job):
        return Plan(status)
    deadline = _deadline(seen)
    if deadline is not None and seen.now >= deadline:
        _set(status, seen, "Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline")
        return Plan(status, delete_pods=_names(seen.active))
    if seen.job["spec"]["suspend"]:
        return _suspended(seen, status)
    plan = _running(seen, status)
    if deadline is not None and (plan.requeue_at is None or plan.requeue_at > deadline):
        plan.requeue_at = deadline
    return plan


def index(pod: Object) -> str:
    """The number of a pod's node, as its label says it."""
    return objects.labels(pod).get(pods.INDEX, "")


def _suspended(seen: Observed, status: Object) -> Plan:
    known = condition(seen.job, "Suspended").get("status") == "True"
    if not known:
        # The pods go after that.
        _set(status, seen, "Suspended", "Suspended", "TrainJob is suspended")
        return Plan(status, requeue_at=seen.now)
    _count(status, suspended=1)
    return Plan(status, delete_pods=_names(seen.active))


def _running(seen: Observed, status: Object) -> Plan:
    if condition(seen.job, "Suspended").get("status") == "True":
        _set(status, seen, "Suspended", "Resumed", "TrainJob is resumed", "False")
        return Plan(status, requeue_at=seen.now)
    before = _counts(status)
    if seen.has_failed:
        _count(status, failed=1)
        _set(
            status,
            seen,
            "Failed",
            "FailedJobs",
            "jobset failed due to one or more job failures (first failed job: "
            f"{pods.job_name(seen.job)})",
        )
        return Plan(status)
    if not before or before.get("suspended"):
        _count(status)
        return Plan(status, create=_missing(seen), requeue_at=seen.now)
    if len(seen.succeeded) >= seen.nodes:
        return _succeeded(seen, status, before)
    if _failed(seen):
        # Job deletes what runs before anybody says that it failed.
        _count(status)
        return Plan(status, delete_pods=_names(seen.active), failed=True, requeue_at=seen.now)
    ready = sum(map(is_ready, seen.active)) + len(seen.succeeded)
    _count(status, active=1, ready=int(ready >= seen.nodes))
    return Plan(status, create=_missing(seen))


def _succeeded(seen: Observed, status: Object, before: Object) -> Plan:
    if before.get("active"):
        _count(status, ready=1)
        return Plan(status, requeue_at=seen.now)
    _count(status, succeeded=1)
    _set(status, seen, "Complete", "AllJobsCompleted", "jobset completed successfully")
    return Plan(status)


def _failed(seen: Observed) -> bool:
    """Whether the pods failed more often than their Job allows."""
    limit = pods.backoff_limit(seen.template)
    failed = sum(phase(p) == "Failed" and not objects.is_terminating(p) for p in seen.pods)
    return failed > limit or (seen.failures > failed and seen.failures >= max(1, limit))


def _missing(seen: Observed) -> list[Object]:
    there = {index(p) for p in seen.active} | seen.succeeded.keys()
    made = [
        pods.pod(seen.job, seen.template, number, seen.nodes)
        for number in range(seen.nodes)
        if str(number) not in there
    ]
    return made if seen.has_service else [pods.service(seen.job), *made]


def _restarts(pod: Object) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return sum(int(each.get("restartCount") or 0) for each in statuses)


def _deadline(seen: Observed) -> datetime | None:
    seconds = seen.job["spec"].get("activeDeadlineSeconds")
    suspended = condition(seen.job, "Suspended")
    if seconds is None or seen.job["spec"]["suspend"] or suspended.get("status") == "True":
        return None
    since = suspended.get("lastTransitionTime") or seen.job["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(since) + timedelta(seconds=seconds)


def _ended(job: Object) -> bool:
    return any(condition(job, each).get("status") == "True" for each in ("Failed", "Complete"))


def _names(found: list[Object]) -> list[str]:
    return [objects.name(each) for each in found]


def _counts(status: Object) -> Object:
    found: Object = next(iter(status.get("jobsStatus") or []), {})
    return found


def _count(status: Object, **numbers: int) -> None:
    status["jobsStatus"] = [{"name": NODE_CONTAINER, **dict.fromkeys(_COUNTS, 0), **numbers}]


def _set(
    status: Object, seen: Observed, kind: str, reason: str, message: str, value: str = "True"
) -> None:
    conditions = status.get("conditions") or []
    new = {"type": kind, "status": value, "reason": reason, "message": message}
    made = dated(new, condition(seen.job, kind), seen.now)
    kept = [each for each in conditions if each["type"] != kind]
    status["conditions"] = [*kept, made]
