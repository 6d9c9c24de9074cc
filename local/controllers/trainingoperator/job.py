"""One reconciliation of a job, as far as it is the same for all kinds of the operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/common/job`, `pkg/core` and `pkg/util/k8sutil`.
Where the operator's order is random (it iterates over a Go map), the first role comes first here.
As in the operator, the deadline of a job is checked only when something else causes a
reconciliation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import ENDED_PHASES, phase
from kfp_pytorch.local.controllers.trainingoperator import labels
from kfp_pytorch.local.controllers.trainingoperator.plan import JobEvent, Plan
from kfp_pytorch.local.controllers.trainingoperator.status import Status

_MANAGER = "kubeflow.org/training-operator"


@dataclass(frozen=True)
class Observed:
    """What there is of a job."""

    job: Object  # with the operator's defaults
    pods: list[Object]  # that the job controls
    now: datetime


def is_left_alone(job: Object) -> bool:
    """Whether the operator does nothing about a job: it is being deleted, or another manager's."""
    manager = (job["spec"].get("runPolicy") or {}).get("managedBy")
    return objects.is_terminating(job) or manager not in (None, _MANAGER)


def is_active(pod: Object) -> bool:
    """Whether the pod neither has ended nor is being deleted."""
    return phase(pod) not in ENDED_PHASES and not objects.is_terminating(pod)


class Reconciliation(ABC):
    """One reconciliation of a job of a kind; `run` gives what there is to do."""

    kind: Kind
    specs_field: str  # where the spec has the roles of pods, such as `pytorchReplicaSpecs`
    replica_types: tuple[str, ...]  # the roles, the first one first

    def __init__(self, seen: Observed) -> None:
        self.job, self.pods, self.now = seen.job, seen.pods, seen.now
        self.name = objects.name(seen.job)
        self.policy: Object = seen.job["spec"]["runPolicy"]
        self.specs: Object = seen.job["spec"][self.specs_field]
        self.status = Status(self.kind, seen.job.get("status") or {}, seen.now)
        self.plan = Plan(self.status.object)

    @abstractmethod
    def reconcile_replicas(self) -> None:
        """Decide about the pods of a job that may run, and write its counts and conditions."""

    def run(self) -> Plan:
        """Decide what to do about the job."""
        self.status.set("Created", "Created", f"{self.kind.kind} {self.name} is created.")
        if self.status.finished:
            self._clean_up_finished()
        elif self.policy.get("suspend"):
            self._suspend()
        else:
            self._reconcile()
        return self.plan

    @property
    def types(self) -> list[str]:
        """The roles that the job has."""
        return [each for each in self.replica_types if each in self.specs]

    def event(self, type_: str, reason: str, message: str) -> None:
        """Record an event about the job."""
        self.plan.events.append(JobEvent(type_, reason, message))

    def enter(self, condition: str, message: str, event_type: str = "Normal") -> None:
        """Set a condition, with an event about it."""
        self.event(event_type, f"{self.kind.kind}{condition}", message)
        self.status.set(condition, condition, message)

    def delete(self, found: Iterable[Object]) -> None:
        """Delete pods, and the services that have their names."""
        for each in found:
            self.plan.delete_services.append(objects.name(each))
            self.delete_pod(each)

    def delete_pod(self, pod: Object) -> None:
        """Delete a pod, unless that has begun."""
        if not objects.is_terminating(pod):
            self.plan.delete_pods.append(objects.name(pod))

    def _clean_up_finished(self) -> None:
        policy = self.policy["cleanPodPolicy"]
        if policy == "All":
            self.delete(self.pods)
        elif policy == "Running":
            # A pending pod would run as soon as it can be scheduled.
            self.delete(p for p in self.pods if phase(p) in ("Running", "Pending"))
        self._expire()
        if self.status.is_true("Succeeded"):
            for counts in self.status.replicas():
                active = counts.pop("active", 0)
                if active:
                    counts["succeeded"] = counts.get("succeeded", 0) + active

    def _suspend(self) -> None:
        self.delete(self.pods)
        for counts in self.status.replicas():
            counts.pop("active", None)
        message = f"{self.kind.kind} {self.name} is suspended."
        if self.status.is_true("Running"):
            self.status.set("Running", "Suspended", message, "False")
        self.enter("Suspended", message)

    def _reconcile(self) -> None:
        if self.status.is_true("Suspended"):
            message = f"{self.kind.kind} {self.name} is resumed."
            self.status.set("Suspended", "Resumed", message, "False")
            self.status.start(again=True)
            self.event("Normal", f"{self.kind.kind}Resumed", message)
        for each in filter(is_active, self.pods):
            self.plan.events += _abnormal_pod_events(each)
        failure = self._exceeded_limit()
        if failure:
            self._fail_at_limit(failure)
        else:
            self.reconcile_replicas()

    # Limits.

    def _exceeded_limit(self) -> str:
        """The message about the limit that the job exceeds, or an empty string."""
        limit = self.policy.get("backoffLimit")
        if limit is not None and (self._new_failure(limit) or self._restarts() >= max(limit, 1)):
            return f"Job {self.name} has failed because it has reached the specified backoff limit"
        seconds = self.policy.get("activeDeadlineSeconds")
        start = self.status.object.get("startTime")
        if start and seconds is not None and self.now >= _after(start, seconds):
            return (
                f"Job {self.name} has failed because it was active longer than specified deadline"
            )
        return ""

    def _new_failure(self, limit: int) -> bool:
        failed = sum(phase(p) == "Failed" for p in self.pods)
        known = sum(each.get("failed", 0) for each in self.status.replicas())
        active = sum(map(is_active, self.pods))
        total = sum(int(self.specs[each]["replicas"]) for each in self.types)
        # The operator's count of its own retries is always 0, so this is for a limit of 0 alone.
        return failed > known and active != total and limit < 1

    def _restarts(self) -> int:
        return sum(
            container.get("restartCount", 0)
            for replica_type in self.types
            if self.specs[replica_type]["restartPolicy"] != "Never"
            for each in labels.of_type(replica_type, self.pods)
            if phase(each) == "Running"
            for statuses in ("initContainerStatuses", "containerStatuses")
            for container in each["status"].get(statuses) or []
        )

    def _fail_at_limit(self, message: str) -> None:
        self.status.complete()
        # Up to v1.9.3: before it is Failed, under any cleanPodPolicy.
        self.delete(self.pods)
        self._expire()
        self.enter("Failed", message)

    def _expire(self) -> None:
        seconds = self.policy.get("ttlSecondsAfterFinished")
        completed = self.status.object.get("completionTime")
        # Some failures never set a completion time; such a job is not deleted.
        if seconds is None or completed is None:
            return
        expiry = _after(completed, seconds)
        if self.now >= expiry:
            self.plan.delete_job = True
        else:
            self.plan.requeue_at = expiry


def _abnormal_pod_events(pod: Object) -> Iterator[JobEvent]:
    """Events about an active pod: its containers' failures, or its newest condition."""
    name, status = objects.name(pod), pod.get("status") or {}
    statuses = status.get("containerStatuses") or status.get("initContainerStatuses")
    for container in statuses or []:
        state = container.get("state") or {}
        ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
        where = f"Error pod {name} container {container['name']}"
        if ended.get("exitCode"):
            code, message = ended["exitCode"], ended.get("message", "")
            text = f"{where} exitCode: {code} terminated message: {message}"
            yield JobEvent("Warning", ended.get("reason", ""), text)
        if waiting.get("message"):
            text = f"{where} waiting message: {waiting['message']}"
            yield JobEvent("Warning", waiting.get("reason", ""), text)
    conditions = status.get("conditions")
    if not statuses and conditions:
        newest = max(conditions, key=lambda condition: condition.get("lastTransitionTime") or "")
        if newest["status"] != "True":
            text = f"Error pod {name} condition message: {newest.get('message', '')}"
            yield JobEvent("Warning", newest.get("reason", ""), text)


def _after(time: str, seconds: int) -> datetime:
    return datetime.fromisoformat(time) + timedelta(seconds=seconds)
