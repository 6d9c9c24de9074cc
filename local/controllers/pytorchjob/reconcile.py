"""One reconciliation of a PyTorchJob, as a pure function, after the Training Operator v1.9.

Source: kubeflow/trainer v1.9.3, `pkg/controller.v1/common/pod` and
`pkg/controller.v1/pytorch/pytorchjob_controller`.
"""

from __future__ import annotations

from datetime import datetime

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubernetes.status import phase
from kfp_pytorch.local.controllers.pytorchjob import pod_state, pods
from kfp_pytorch.local.controllers.pytorchjob.pods import MASTER, WORKER
from kfp_pytorch.local.controllers.trainingoperator import labels
from kfp_pytorch.local.controllers.trainingoperator.job import (
    Observed,
    Reconciliation,
    is_left_alone,
)
from kfp_pytorch.local.controllers.trainingoperator.plan import Plan

_RETRYABLE = 128
_RESTARTED_BY_KUBELET = ("OnFailure", "Always")


def reconcile(job: Object, job_pods: list[Object], services: list[Object], now: datetime) -> Plan:
    """Decide what to do about a PyTorchJob: nothing if it is terminating or another manager's."""
    if is_left_alone(job):
        return Plan(job.get("status") or {})
    return _Reconciliation(Observed(pods.defaulted(job), job_pods, now), services).run()


class _Reconciliation(Reconciliation):
    kind = PYTORCHJOB
    specs_field = "pytorchReplicaSpecs"
    replica_types = pods.REPLICA_TYPES

    def __init__(self, seen: Observed, services: list[Object]) -> None:
        super().__init__(seen)
        self.services = services

    def reconcile_replicas(self) -> None:
        self.status.object["replicaStatuses"] = {}
        for replica_type in self.types:
            self._reconcile_pods(replica_type)
            self._reconcile_services(replica_type)
        self.status.start()
        self._update_conditions()

    # Pods and services.

    def _reconcile_pods(self, replica_type: str) -> None:
        counts: Object = {}
        self.status.object["replicaStatuses"][replica_type] = counts
        wanted = pods.replicas(self.job, replica_type)
        by_index = pod_state.by_index(labels.of_type(replica_type, self.pods))
        for index in range(max([wanted, *(each + 1 for each in by_index)])):
            if index not in by_index:
                self._create_pod(replica_type, index)
                continue
            each = by_index[index]
            if index >= wanted:
                self.delete_pod(each)
            self._handle_exit(replica_type, each)
            pod_state.count(counts, each)

    def _create_pod(self, replica_type: str, index: int) -> None:
        self.plan.create.append(pods.pod(self.job, replica_type, index))
        if self.specs[replica_type]["template"]["spec"].get("restartPolicy"):
            self.event(
                "Warning",
                "SetPodTemplateRestartPolicy",
                "Restart policy in pod template will be overwritten by restart policy in replica "
                "spec",
            )

    def _handle_exit(self, replica_type: str, each: Object) -> None:
        code = pod_state.exit_code(each)
        if code != pod_state.NO_EXIT_CODE:
            where = f"{objects.namespace(each)}.{objects.name(each)}"
            self.event("Normal", "ExitedWithCode", f"Pod: {where} exited with code {code}")
        if phase(each) != "Failed":
            return
        policy = self.specs[replica_type]["restartPolicy"]
        by_code = policy == "ExitCode"
        if policy in _RESTARTED_BY_KUBELET or (by_code and code >= _RETRYABLE):
            self.delete_pod(each)
            message = f"job {self.name} is restarting because {replica_type} replica(s) failed."
            self.enter("Restarting", message, "Warning")
        elif by_code:
            message = f'job "{self.name}" is failing because "{replica_type}" replica(s) failed.'
            self.enter("Failed", message, "Warning")

    def _reconcile_services(self, replica_type: str) -> None:
        wanted = pods.replicas(self.job, replica_type)
        by_index = pod_state.by_index(labels.of_type(replica_type, self.services))
        for index in range(wanted):
            if index not in by_index:
                self.plan.create.append(pods.service(self.job, replica_type, index))
        for index, each in by_index.items():
            if index >= wanted:
                self.plan.delete_services.append(objects.name(each))

    # Conditions.

    def _update_conditions(self) -> None:
        for replica_type in self.types:
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
        self.enter("Succeeded", message)

    def _failed_replicas(self, replica_type: str, failed: int) -> None:
        because = f"because {failed} {replica_type} replica(s) failed."
        if self.specs[replica_type]["restartPolicy"] != "Never":
            message = f"PyTorchJob {self.name} is restarting {because}"
            self.enter("Restarting", message, "Warning")
        else:
            message = f"PyTorchJob {self.name} is failed {because}"
            self.status.complete()
            self.enter("Failed", message)
