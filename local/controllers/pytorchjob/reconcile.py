"""One reconciliation of a PyTorchJob, as a pure function, after the Training Operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/common/{job,pod}`, `pkg/core`,
`pkg/util/status` and `pkg/controller.v1/pytorch/pytorchjob_controller`. Where the operator's order
is random (it iterates over a Go map), the master comes first here. As in the operator, the deadline
of a job is checked only when something else causes a reconciliation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import phase
from kfp_pytorch.local.controllers.pytorchjob import pod_state, pods
from kfp_pytorch.local.controllers.pytorchjob.pod_state import JobEvent
from kfp_pytorch.local.controllers.pytorchjob.pods import MASTER, WORKER
from kfp_pytorch.local.controllers.pytorchjob.status import Status

_MANAGER = "kubeflow.org/training-operator"
_RETRYABLE = 128
_RESTARTED_BY_KUBELET = ("OnFailure", "Always")


@dataclass
class Plan:
    """What a reconciliation does, in this order."""

    status: Object  # the job's status afterwards
    delete_pods: list[str] = field(default_factory=list)  # names of pods to delete
    delete_services: list[str] = field(default_factory=list)  # names of services to delete
    delete_job: bool = False  # whether the job itself has outlived its TTL
    create: list[Object] = field(default_factory=list)  # pods and services to create, in order
    events: list[JobEvent] = field(default_factory=list)  # events to record
    requeue_at: datetime | None = None  # when to reconcile again though nothing has changed


def reconcile(job: Object, job_pods: list[Object], services: list[Object], now: datetime) -> Plan:
    """Decide what to do about a PyTorchJob: nothing if it is terminating or another manager's."""
    if objects.is_terminating(job) or _has_other_manager(job):
        return Plan(job.get("status") or {})
    return _Reconciliation(pods.defaulted(job), job_pods, services, now).run()


def _has_other_manager(job: Object) -> bool:
    manager = (job["spec"].get("runPolicy") or {}).get("managedBy")
    return manager is not None and manager != _MANAGER


class _Reconciliation:
    def __init__(
        self, job: Object, job_pods: list[Object], services: list[Object], now: datetime
    ) -> None:
        self.job = job
        self.name = objects.name(job)
        self.policy: Object = job["spec"]["runPolicy"]
        self.specs: Object = job["spec"]["pytorchReplicaSpecs"]
        self.pods = job_pods
        self.services = services
        self.now = now
        self.status = Status(job.get("status") or {}, now)
        self.plan = Plan(self.status.object)

    def run(self) -> Plan:
        self.status.set("Created", "Created", f"PyTorchJob {self.name} is created.")
        if self.status.finished:
            self._clean_up_finished()
        elif self.policy.get("suspend"):
            self._suspend()
        else:
            self._reconcile_replicas()
        return self.plan

    def _event(self, type_: str, reason: str, message: str) -> None:
        self.plan.events.append(JobEvent(type_, reason, message))

    def _enter(self, condition: str, message: str, event_type: str = "Normal") -> None:
        self._event(event_type, f"PyTorchJob{condition}", message)
        self.status.set(condition, condition, message)

    def _clean_up_finished(self) -> None:
        policy = self.policy["cleanPodPolicy"]
        if policy == "All":
            self._delete(self.pods)
        elif policy == "Running":
            # A pending pod would run as soon as it can be scheduled.
            self._delete(p for p in self.pods if phase(p) in ("Running", "Pending"))
        self._expire()
        if self.status.is_true("Succeeded"):
            for counts in self.status.replicas():
                active = counts.pop("active", 0)
                if active:
                    counts["succeeded"] = counts.get("succeeded", 0) + active

    def _suspend(self) -> None:
        self._delete(self.pods)
        for counts in self.status.replicas():
            counts.pop("active", None)
        message = f"PyTorchJob {self.name} is suspended."
        if self.status.is_true("Running"):
            self.status.set("Running", "Suspended", message, "False")
        self._enter("Suspended", message)

    def _reconcile_replicas(self) -> None:
        if self.status.is_true("Suspended"):
            message = f"PyTorchJob {self.name} is resumed."
            self.status.set("Suspended", "Resumed", message, "False")
            self.status.start(again=True)
            self._event("Normal", "PyTorchJobResumed", message)
        for each in filter(pod_state.is_active, self.pods):
            self.plan.events += pod_state.abnormal_pod_events(each)
        failure = self._exceeded_limit()
        if failure:
            self._fail_at_limit(failure)
            return
        self.status.object["replicaStatuses"] = {}
        for replica_type in self._types():
            self._reconcile_pods(replica_type)
            self._reconcile_services(replica_type)
        self.status.start()
        self._update_conditions()

    def _types(self) -> list[str]:
        return [each for each in pods.REPLICA_TYPES if each in self.specs]

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
        active = sum(map(pod_state.is_active, self.pods))
        total = sum(pods.replicas(self.job, each) for each in self._types())
        # The operator's count of its own retries is always 0, so this is for a limit of 0 alone.
        return failed > known and active != total and limit < 1

    def _restarts(self) -> int:
        return sum(
            container.get("restartCount", 0)
            for replica_type in self._types()
            if self.specs[replica_type]["restartPolicy"] != "Never"
            for each in _of_type(replica_type, self.pods)
            if phase(each) == "Running"
            for statuses in ("initContainerStatuses", "containerStatuses")
            for container in each["status"].get(statuses) or []
        )

    def _fail_at_limit(self, message: str) -> None:
        self.status.complete()
        # Up to v1.9.3: before it is Failed, under any cleanPodPolicy.
        self._delete(self.pods)
        self._expire()
        self._enter("Failed", message)

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

    # Pods and services.

    def _delete(self, found: Iterable[Object]) -> None:
        for each in found:
            self.plan.delete_services.append(objects.name(each))
            self._delete_pod(each)

    def _delete_pod(self, pod_object: Object) -> None:
        if not objects.is_terminating(pod_object):
            self.plan.delete_pods.append(objects.name(pod_object))

    def _reconcile_pods(self, replica_type: str) -> None:
        counts: Object = {}
        self.status.object["replicaStatuses"][replica_type] = counts
        wanted = pods.replicas(self.job, replica_type)
        by_index = pod_state.by_index(_of_type(replica_type, self.pods))
        for index in range(max([wanted, *(each + 1 for each in by_index)])):
            if index not in by_index:
                self._create_pod(replica_type, index)
                continue
            each = by_index[index]
            if index >= wanted:
                self._delete_pod(each)
            self._handle_exit(replica_type, each)
            pod_state.count(counts, each)

    def _create_pod(self, replica_type: str, index: int) -> None:
        self.plan.create.append(pods.pod(self.job, replica_type, index))
        if self.specs[replica_type]["template"]["spec"].get("restartPolicy"):
            self._event(
                "Warning",
                "SetPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica "
                "spec",
            )

    def _handle_exit(self, replica_type: str, each: Object) -> None:
        code = pod_state.exit_code(each)
        if code != pod_state.NO_EXIT_CODE:
            where = f"{objects.namespace(each)}.{objects.name(each)}"
            self._event("Normal", "ExitedWithCode", f"Pod: {where} exited with code {code}")
        if phase(each) != "Failed":
            return
        policy = self.specs[replica_type]["restartPolicy"]
        by_code = policy == "ExitCode"
        if policy in _RESTARTED_BY_KUBELET or (by_code and code >= _RETRYABLE):
            self._delete_pod(each)
            message = f"job {self.name} is restarting because {replica_type} replica(s) failed."
            self._enter("Restarting", message, "Warning")
        elif by_code:
            message = f'job "{self.name}" is failing because "{replica_type}" replica(s) failed.'
            self._enter("Failed", message, "Warning")

    def _reconcile_services(self, replica_type: str) -> None:
        wanted = pods.replicas(self.job, replica_type)
        by_index = pod_state.by_index(_of_type(replica_type, self.services))
        for index in range(wanted):
            if index not in by_index:
                self.plan.create.append(pods.service(self.job, replica_type, index))
        for index, each in by_index.items():
            if index >= wanted:
                self.plan.delete_services.append(objects.name(each))

    # Conditions.

    def _update_conditions(self) -> None:
        for replica_type in self._types():
            if self._update_from_replicas(replica_type):
                return  # the workers' counts get no selector

    def _update_from_replicas(self, replica_type: str) -> bool:
        """Derive conditions from the pods of one type; returns whether the master succeeded."""
        counts = self.status.object["replicaStatuses"][replica_type]
        selector = pods.labels(self.job, replica_type)
        counts["selector"] = ",".join(f"{key}={selector[key]}" for key in sorted(selector))
        succeeded, running = counts.get("succeeded", 0), counts.get("active", 0)
        failed, wanted = counts.get("failed", 0), pods.replicas(self.job, replica_type)
        if replica_type == MASTER:
            if running:
                self._running(self.name)
            if succeeded == wanted:
                self._succeeded(f"PyTorchJob {self.name} is successfully completed.")
                return True
        elif replica_type == WORKER and MASTER not in self.specs:
            elastic = self.job["spec"].get("elasticPolicy") is not None
            where = f"{objects.namespace(self.job)}/{self.name}"
            if succeeded == wanted or (elastic and succeeded):
                self._succeeded(f"PyTorchJob {where} successfully completed.")
            elif running:
                self._running(where)
        if failed and wanted > succeeded + running:
            self._failed_replicas(replica_type, failed)
        return False

    def _running(self, who: str) -> None:
        self.status.set("Running", "Running", f"PyTorchJob {who} is running.")

    def _succeeded(self, message: str) -> None:
        self.status.complete()
        self._enter("Succeeded", message)

    def _failed_replicas(self, replica_type: str, failed: int) -> None:
        because = f"because {failed} {replica_type} replica(s) failed."
        if self.specs[replica_type]["restartPolicy"] != "Never":
            message = f"PyTorchJob {self.name} is restarting {because}"
            self._enter("Restarting", message, "Warning")
        else:
            message = f"PyTorchJob {self.name} is failed {because}"
            self.status.complete()
            self._enter("Failed", message)


def _of_type(replica_type: str, found: list[Object]) -> list[Object]:
    label = replica_type.lower()
    return [each for each in found if objects.labels(each).get(pods.REPLICA_TYPE_LABEL) == label]


def _after(time: str, seconds: int) -> datetime:
    return datetime.fromisoformat(time) + timedelta(seconds=seconds)
