"""One reconciliation of an MPIJob, as a pure function, after the Training Operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/mpi/mpijob_controller`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.constants import MPIJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import ENDED_PHASES, phase
from kfp_pytorch.local.controllers.mpijob import parts, pods
from kfp_pytorch.local.controllers.trainingoperator import labels
from kfp_pytorch.local.controllers.trainingoperator.job import (
    Observed,
    Reconciliation,
    is_left_alone,
)
from kfp_pytorch.local.controllers.trainingoperator.mpi import LAUNCHER, WORKER
from kfp_pytorch.local.controllers.trainingoperator.plan import JobEvent, Plan

_COUNTED = {"Succeeded": "succeeded", "Failed": "failed", "Running": "active"}


@dataclass(frozen=True)
class Owned:
    """What there is of what a job's launcher needs."""

    config: Object | None  # the ConfigMap; None if there is none
    missing: list[Object]  # of the account, the role and the binding: those to create
    kubectl_exec: str  # the command line that stands for `kubectl exec`


def reconcile(seen: Observed, owned: Owned) -> Plan:
    """Decide what to do about an MPIJob: nothing if it is invalid, terminating or another's."""
    if is_left_alone(seen.job):
        return Plan(seen.job.get("status") or {})
    return _Reconciliation(seen, owned).run()


def refused(job: Object, why: str) -> Plan:
    """What the operator does about an invalid job: it says so."""
    message = f"MPIJob failed validation because {why}"
    event = JobEvent("Warning", f"{MPIJOB.kind}FailedValidation", message)
    return Plan(job.get("status") or {}, events=[event])


class _Reconciliation(Reconciliation):
    kind = MPIJOB
    specs_field = "mpiReplicaSpecs"
    replica_types = pods.ROLES

    def __init__(self, seen: Observed, owned: Owned) -> None:
        super().__init__(seen)
        self.owned = owned
        self.where = f"{objects.namespace(self.job)}/{self.name}"
        self.workers = labels.of_type(WORKER, self.pods)
        self.launcher = next(iter(labels.of_type(LAUNCHER, self.pods)), None)

    def reconcile_replicas(self) -> None:
        self.status.start()
        done = self.launcher is not None and phase(self.launcher) in ENDED_PHASES
        if not done:
            self._create_what_is_missing()
        # Once the launcher has ended, the operator counts no workers.
        counts = {LAUNCHER: _counts([self.launcher] if self.launcher else [])}
        counts[WORKER] = {} if done else _counts(self.workers)
        self.status.object["replicaStatuses"] = counts
        self._record(counts)
        self._update_conditions(counts)

    # Pods, and what they need.

    def _create_what_is_missing(self) -> None:
        self._reconcile_config()
        self.plan.create += self.owned.missing
        by_name = {objects.name(each) for each in self.pods}
        wanted = [pods.worker_name(self.job, index) for index in range(pods.workers(self.job))]
        for each in self.workers:
            if objects.name(each) not in wanted:
                self.delete_pod(each)
        for index, name in enumerate(wanted):
            if name not in by_name:
                self.plan.create.append(pods.worker(self.job, index))
        if self.launcher is None:
            self._create_launcher()

    def _create_launcher(self) -> None:
        self.plan.create.append(pods.launcher(self.job))
        if self.specs[LAUNCHER]["template"]["spec"].get("restartPolicy"):
            self.event(
                "Warning",
                "SettedPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica "
                "spec",
            )

    def _reconcile_config(self) -> None:
        running = [objects.name(each) for each in self.workers if phase(each) == "Running"]
        wanted = parts.config_map(self.job, running, self.owned.kubectl_exec)
        found = self.owned.config
        if found is None:
            self.plan.create.append(wanted)
        elif found.get("data") != wanted["data"]:
            self.plan.update.append({**found, "data": wanted["data"]})

    # Events and conditions.

    def _record(self, counts: dict[str, Object]) -> None:
        """Record what the operator says of the pods, before it sets conditions."""
        of_launcher = counts[LAUNCHER]
        if of_launcher.get("succeeded"):
            message = f"MPIJob {self.where} successfully completed."
            self.event("Normal", f"{MPIJOB.plural}Succeeded", message)
        elif of_launcher.get("failed"):
            assert self.launcher is not None  # noqa: S101 (it has been counted)
            reason = self.launcher["status"].get("reason") or "MPIJobFailed"
            self.event("Warning", reason, f"MPIJob {self.where} has failed")
        elif of_launcher.get("active") and counts[WORKER].get("active", 0) == len(self.workers):
            self.event("Normal", "MPIJobRunning", f"MPIJob {self.where} is running")

    def _update_conditions(self, counts: dict[str, Object]) -> None:
        if counts[LAUNCHER].get("active"):
            self.status.set("Running", "Running", f"MPIJob {self.name} is running.")
        if counts[LAUNCHER].get("succeeded"):
            self.status.complete()
            self.enter("Succeeded", f"MPIJob {self.name} is successfully completed.")
            return
        for role in self.types:
            if counts[role].get("failed"):
                self._failed(role, counts[role]["failed"])

    def _failed(self, role: str, count: int) -> None:
        because = f"because {count} {role} replica(s) failed."
        if self.specs[role]["restartPolicy"] == "ExitCode":
            message = f"MPIJob {self.name} is restarting {because}"
            self.enter("Restarting", message, "Warning")
            return
        message = f"MPIJob {self.name} is failed {because}"
        self.event("Normal", "MPIJobFailed", message)
        self.status.complete()
        # The operator puts the kind before it twice.
        self.status.set("Failed", "MPIJobFailed", message)


def _counts(found: list[Object]) -> Object:
    counts: Object = {}
    for each in found:
        key = _COUNTED.get(phase(each))
        if key:
            counts[key] = counts.get(key, 0) + 1
    return counts
