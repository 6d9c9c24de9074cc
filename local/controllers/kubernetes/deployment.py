"""The Deployment controller: rolls pods from the old template to the new one.

There are no ReplicaSet objects: a pod's owner is the Deployment, and its label `pod-template-hash`
names the ReplicaSet that it would be in. Source: kubernetes
`pkg/controller/deployment/{rolling,recreate,progress,sync}.go`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kfp_pytorch.launcher.constants import DEPLOYMENT, POD, PREFIX
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.status import ENDED_PHASES, is_ready, phase
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

HASH_LABEL = "pod-template-hash"
# Annotates a Deployment whose work this process itself does: it has no pods.
IN_PROCESS = f"{PREFIX}/in-process"
PROGRESS_DEADLINE_S = 600
# The defaults of a rolling update: a quarter more, rounded up, and a quarter less, rounded down.
_QUARTER = 4


@dataclass
class Plan:
    """What a reconciliation does."""

    create: list[Object] = field(default_factory=list)  # pods to create
    delete: list[str] = field(default_factory=list)  # names of pods to delete
    status: Object = field(default_factory=dict)  # the Deployment's status
    requeue_at: datetime | None = None  # when to reconcile again though nothing has changed


def template_hash(deployment: Object) -> str:
    """The hash of a Deployment's pod template, as a label's value."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def reconcile(deployment: Object, pods: list[Object], now: datetime) -> Plan:
    """Decide what to do about a Deployment; first only to record its new ReplicaSet."""
    return _Reconciliation(deployment, pods, now).run()


class _Reconciliation:
    def __init__(self, deployment: Object, pods: list[Object], now: datetime) -> None:
        self.deployment, self.pods, self.now = deployment, pods, now
        self.wanted = int(deployment["spec"].get("replicas", 1))
        self.digest = template_hash(deployment)
        active = [p for p in pods if not objects.is_terminating(p) and phase(p) not in ENDED_PHASES]
        self.new = [pod for pod in active if self._is_new(pod)]
        self.old = [pod for pod in active if not self._is_new(pod)]
        self.recreate = (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"
        self.status: Object = objects.copy(deployment.get("status") or {})

    def _is_new(self, pod: Object) -> bool:
        return objects.labels(pod).get(HASH_LABEL) == self.digest

    def run(self) -> Plan:
        replica_set = f"{objects.name(self.deployment)}-{self.digest}"
        progressing = status.condition({"status": self.status}, "Progressing")
        if f'"{replica_set}"' not in progressing.get("message", ""):
            message = f'Created new replica set "{replica_set}"'
            self._set("Progressing", "True", "NewReplicaSetCreated", message)
            return Plan(status=self.status)
        create = [self._pod()] * self._missing()
        delete = [objects.name(pod) for pod in [*self._surplus(), *self._old_to_delete()]]
        requeue_at = self._update_status(f'ReplicaSet "{replica_set}"', len(create))
        return Plan(create, delete, self.status, requeue_at)

    # Pods.

    def _missing(self) -> int:
        if self.recreate and not all(map(self._is_new, self.pods)):
            return 0  # the old pods, terminating ones included, must be gone first
        surge = 0 if self.recreate else -(-self.wanted // _QUARTER)
        room = self.wanted + surge - len(self.old) - len(self.new)
        return max(0, min(self.wanted - len(self.new), room))

    def _surplus(self) -> list[Object]:
        """New pods beyond the wanted number, the unready first."""
        return sorted(self.new, key=is_ready)[: max(0, len(self.new) - self.wanted)]

    def _old_to_delete(self) -> list[Object]:
        """The old pods that are not ready, and others while enough pods are available."""
        least = 0 if self.recreate else self.wanted - self.wanted // _QUARTER
        spare = sum(map(is_ready, [*self.old, *self.new])) - least
        ready = [pod for pod in self.old if is_ready(pod)]
        return [*(pod for pod in self.old if not is_ready(pod)), *ready[: max(0, spare)]]

    def _pod(self) -> Object:
        template = objects.copy(self.deployment["spec"]["template"])
        given = template.get("metadata") or {}
        metadata = {
            "generateName": f"{objects.name(self.deployment)}-{self.digest}-",
            "labels": {**(given.get("labels") or {}), HASH_LABEL: self.digest},
            "annotations": given.get("annotations") or {},
        }
        return objects.controlled(POD, metadata, template["spec"], self.deployment, DEPLOYMENT)

    # The status.

    def _update_status(self, replica_set: str, created: int) -> datetime | None:
        """Update counts and conditions; returns when the progress deadline passes, if it runs."""
        before = self.deployment.get("status") or {}
        available = sum(map(is_ready, [*self.new, *self.old]))
        total = len(self.new) + len(self.old)
        counts = {
            "replicas": total,
            "updatedReplicas": len(self.new),
            "readyReplicas": available,
            "availableReplicas": available,
            "unavailableReplicas": max(0, total + created - available),
        }
        self.status = {key: value for key, value in self.status.items() if key not in counts}
        self.status |= {name: count for name, count in counts.items() if count}
        self.status["observedGeneration"] = objects.metadata(self.deployment).get("generation", 1)
        least = self.wanted if self.recreate else self.wanted - self.wanted // _QUARTER
        enough = available >= least
        reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
        message = f"Deployment {'has' if enough else 'does not have'} minimum availability."
        self._set("Available", str(enough), reason, message)
        return self._update_progress(before, counts, replica_set)

    def _update_progress(
        self, before: Object, counts: dict[str, int], replica_set: str
    ) -> datetime | None:
        only_new = counts["replicas"] == counts["updatedReplicas"]
        if only_new and counts["replicas"] == self.wanted <= counts["readyReplicas"]:
            message = f"{replica_set} has successfully progressed."
            self._set("Progressing", "True", "NewReplicaSetAvailable", message)
            return None
        known = status.condition({"status": self.status}, "Progressing")
        complete = known["reason"] == "NewReplicaSetAvailable"
        if complete and only_new:
            return None  # a pod that is not ready any more starts no rollout
        if _has_progressed(before, counts):
            known["reason"] = ""  # so that it is written again, with a new lastUpdateTime
            message = f"{replica_set} is progressing."
            self._set("Progressing", "True", "ReplicaSetUpdated", message)
            known = status.condition({"status": self.status}, "Progressing")
        limit = self.deployment["spec"].get("progressDeadlineSeconds", PROGRESS_DEADLINE_S)
        deadline = datetime.fromisoformat(known["lastUpdateTime"]) + timedelta(seconds=limit)
        if self.now < deadline:
            return deadline
        message = f"{replica_set} has timed out progressing."
        self._set("Progressing", "False", "ProgressDeadlineExceeded", message)
        return None

    def _set(self, type_: str, value: str, reason: str, message: str) -> None:
        new = {"type": type_, "status": value, "reason": reason, "message": message}
        set_condition(self.status, new, self.now)


def _has_progressed(before: Object, counts: dict[str, int]) -> bool:
    """Whether there are more new or ready pods, or fewer old ones, than before."""
    old: int = before.get("replicas", 0) - before.get("updatedReplicas", 0)
    return (
        any(counts[key] > before.get(key, 0) for key in ("updatedReplicas", "readyReplicas"))
        or counts["replicas"] - counts["updatedReplicas"] < old
    )


def set_condition(status_: Object, new: Object, now: datetime) -> None:
    """Put a condition last, unless its status and reason are what they were."""
    known = status.condition({"status": status_}, new["type"])
    if all(known.get(key) == new[key] for key in ("status", "reason")):
        return
    new = {**new, "lastUpdateTime": objects.timestamp(now)}
    _remove_condition(status_, new["type"])
    status_["conditions"].append(status.dated(new, known, now))


def _remove_condition(status_: Object, type_: str) -> None:
    conditions = status_.get("conditions") or []
    status_["conditions"] = [each for each in conditions if each["type"] != type_]


class DeploymentController:
    """Runs the Deployments of one cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorder = Recorder(api, "deployment-controller")
        self._queue = WorkQueue(api, self.reconcile)

    async def run(self) -> None:
        """Work until cancelled."""
        queue = self._queue
        await queue.run(queue.watch(DEPLOYMENT), queue.watch_owned(POD, DEPLOYMENT))

    def reconcile(self, key: Key) -> None:
        """Bring one Deployment closer to its spec. Raises ApiError: it is to be retried."""
        deployment = self._api.find(DEPLOYMENT, *key)
        if deployment is None or objects.is_terminating(deployment):
            return
        if IN_PROCESS in (objects.metadata(deployment).get("annotations") or {}):
            return
        found = self._api.snapshot(POD, key[0])
        pods = [pod for pod in found if objects.is_controlled_by(pod, deployment)]
        now = self._api.clock()
        plan = reconcile(deployment, pods, now)
        for name in plan.delete:
            self._api.delete(POD, key[0], name)
        deployment = status.write(self._api, DEPLOYMENT, deployment, plan.status)
        if plan.requeue_at is not None:
            self._queue.add_at(key, plan.requeue_at)
        refusal = self._create(plan.create, deployment)
        if refusal:
            failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
            set_condition(plan.status, {**failed, "message": str(refusal)}, now)
            status.write(self._api, DEPLOYMENT, deployment, plan.status)
            raise refusal
        if status.condition(deployment, "ReplicaFailure"):
            _remove_condition(plan.status, "ReplicaFailure")
            status.write(self._api, DEPLOYMENT, deployment, plan.status)

    def _create(self, pods: list[Object], deployment: Object) -> ApiError | None:
        for pod in pods:
            try:
                self._api.create(POD, pod)
            except ApiError as error:
                message = f"Error creating: {error}"
                self._recorder.event(deployment, "Warning", "FailedCreate", message)
                return error
        return None
