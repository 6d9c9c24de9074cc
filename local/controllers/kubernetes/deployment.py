"""The Deployment controller: keeps pods of the newest template running, old ones until then.

There are no ReplicaSets: a pod's owner is the Deployment, and its label `pod-template-hash` says
of which template it is. Source: kubernetes `pkg/controller/deployment/{rolling,progress,sync}.go`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kfp_pytorch.launcher.constants import DEPLOYMENT, POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

Object = dict[str, Any]

HASH_LABEL = "pod-template-hash"
PROGRESS_DEADLINE_S = 600
# The defaults of a rolling update: a quarter more, rounded up, and a quarter less, rounded down.
_QUARTER = 4


@dataclass
class Plan:
    """What is to be done about one Deployment.

    Attributes:
        create: Pods to create.
        delete: Names of pods to delete.
        status: The Deployment's status.
        wake_at: When to look again though nothing changed, or None.
    """

    create: list[Object] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)
    status: Object = field(default_factory=dict)
    wake_at: datetime | None = None


def ready(pod: Object) -> bool:
    """Whether a pod takes requests: its condition Ready is True and it is not being deleted."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    said = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return said and not objects.deleting(pod)


def template_hash(deployment: Object) -> str:
    """The hash of a Deployment's pod template, as a label's value."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def reconcile(deployment: Object, pods: list[Object], now: datetime) -> Plan:
    """Decide what to do about a Deployment.

    Args:
        deployment: The Deployment.
        pods: Its pods, deleted and failed ones included.
        now: The time, in UTC.

    Returns:
        What to do.
    """
    wanted = int(deployment["spec"].get("replicas", 1))
    digest = template_hash(deployment)
    active = [pod for pod in pods if not objects.deleting(pod) and not _ended(pod)]
    new = [pod for pod in active if objects.labels(pod).get(HASH_LABEL) == digest]
    old = [pod for pod in active if objects.labels(pod).get(HASH_LABEL) != digest]
    recreate = (deployment["spec"].get("strategy") or {}).get("type") == "Recreate"
    surge = 0 if recreate else -(-wanted // _QUARTER)
    least = 0 if recreate else wanted - wanted // _QUARTER
    room = wanted + surge - len(old) - len(new)
    if recreate and any(objects.labels(p).get(HASH_LABEL) != digest for p in pods):
        room = 0  # the old ones, those that are still stopping too, go first
    plan = Plan(create=[_pod(deployment, digest)] * max(0, min(wanted - len(new), room)))
    plan.delete = [objects.name(pod) for pod in [*_spare(new, wanted), *_old(old, new, least)]]
    plan.status, plan.wake_at = _status(deployment, new, old, least, now)
    return plan


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _spare(new: list[Object], wanted: int) -> list[Object]:
    """Those that are too many, the ones that are not ready first."""
    return sorted(new, key=ready)[: max(0, len(new) - wanted)]


def _old(old: list[Object], new: list[Object], least: int) -> list[Object]:
    """Old pods that may go: the unready at once, others while enough are left."""
    available = sum(map(ready, [*old, *new]))
    going = []
    for pod in sorted(old, key=ready):
        if ready(pod):
            if available <= least:
                break
            available -= 1
        going.append(pod)
    return going


def _pod(deployment: Object, digest: str) -> Object:
    template = objects.copy(deployment["spec"]["template"])
    metadata = template.get("metadata") or {}
    name = objects.name(deployment)
    owner = {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "name": name,
        "uid": objects.metadata(deployment)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "metadata": {
            "generateName": f"{name}-{digest}-",
            "namespace": objects.namespace(deployment),
            "labels": {**(metadata.get("labels") or {}), HASH_LABEL: digest},
            "annotations": metadata.get("annotations") or {},
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }


def _status(
    deployment: Object, new: list[Object], old: list[Object], least: int, now: datetime
) -> tuple[Object, datetime | None]:
    wanted = int(deployment["spec"].get("replicas", 1))
    available = sum(map(ready, [*new, *old]))
    counts = {
        "replicas": len(new) + len(old),
        "updatedReplicas": len(new),
        "readyReplicas": available,
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
    }
    before = deployment.get("status") or {}
    progressing, wake_at = _progressing(deployment, counts, now)
    conditions = [_available(available >= least), progressing]
    known = {each["type"]: each for each in before.get("conditions") or []}
    return {
        "observedGeneration": objects.metadata(deployment).get("generation", 1),
        **{name: count for name, count in counts.items() if count},
        "conditions": [_dated(each, known.get(each["type"], {}), now) for each in conditions],
    }, wake_at


def _available(enough: bool) -> Object:
    if enough:
        reason, words = "MinimumReplicasAvailable", "Deployment has minimum availability."
    else:
        reason = "MinimumReplicasUnavailable"
        words = "Deployment does not have minimum availability."
    return {"type": "Available", "status": str(enough), "reason": reason, "message": words}


def _progressing(
    deployment: Object, counts: Object, now: datetime
) -> tuple[Object, datetime | None]:
    name, before = objects.name(deployment), deployment.get("status") or {}
    wanted = int(deployment["spec"].get("replicas", 1))
    whole = ("replicas", "updatedReplicas", "availableReplicas")
    if all(counts[each] == wanted for each in whole):
        words = f'Deployment "{name}" has successfully progressed.'
        return _progress("True", "NewReplicaSetAvailable", words, now), None
    conditions: list[Object] = before.get("conditions") or []
    known = next((c for c in conditions if c["type"] == "Progressing"), {})
    generation = objects.metadata(deployment).get("generation", 1)
    moved = before.get("observedGeneration") != generation or any(
        before.get(each, 0) != count for each, count in counts.items()
    )
    since = now if moved or not known else datetime.fromisoformat(known["lastUpdateTime"])
    limit = deployment["spec"].get("progressDeadlineSeconds", PROGRESS_DEADLINE_S)
    deadline = since + timedelta(seconds=limit)
    if now >= deadline:
        words = f'Deployment "{name}" has timed out progressing.'
        return _progress("False", "ProgressDeadlineExceeded", words, since), None
    words = f'Deployment "{name}" is progressing.'
    return _progress("True", "ReplicaSetUpdated", words, since), deadline


def _progress(status: str, reason: str, words: str, since: datetime) -> Object:
    condition = {"type": "Progressing", "status": status, "reason": reason, "message": words}
    return {**condition, "lastUpdateTime": objects.timestamp(since)}


def replica_failure(deployment: Object, words: str, now: datetime) -> Object:
    """The condition of a Deployment whose pods the cluster refuses.

    Args:
        deployment: The Deployment, with its status until now.
        words: Why a pod was refused.
        now: The time, in UTC.
    """
    failed = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    conditions = (deployment.get("status") or {}).get("conditions") or []
    known: Object = next((each for each in conditions if each["type"] == "ReplicaFailure"), {})
    same = known.get("message") == words
    updated = known["lastUpdateTime"] if same else objects.timestamp(now)
    return _dated({**failed, "message": words, "lastUpdateTime": updated}, known, now)


def _dated(condition: Object, known: Object, now: datetime) -> Object:
    """Keep the times of a condition that says what it said."""
    stamp = objects.timestamp(now)
    same = {key: known.get(key) for key in ("status", "reason")} == {
        key: condition[key] for key in ("status", "reason")
    }
    done = condition.get("reason") == "NewReplicaSetAvailable"
    if same and (done or "lastUpdateTime" not in condition):
        return {**condition, **{k: v for k, v in known.items() if k.endswith("Time")}}
    since = known.get("lastTransitionTime") if known.get("status") == condition["status"] else None
    return {"lastUpdateTime": stamp, **condition, "lastTransitionTime": since or stamp}


class DeploymentController:
    """Runs the Deployments of one cluster.

    Args:
        api: The cluster's objects.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorder = Recorder(api, "deployment-controller")
        self._queue = WorkQueue(api, self.reconcile)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._watch_deployments())
            group.create_task(self._watch_pods())

    async def _watch_deployments(self) -> None:
        async for _, deployment in self._api.watch(DEPLOYMENT):
            self._queue.add((objects.namespace(deployment), objects.name(deployment)))

    async def _watch_pods(self) -> None:
        async for _, pod in self._api.watch(POD):
            self._queue.add_controller(pod, DEPLOYMENT)

    def reconcile(self, key: Key) -> None:
        """Bring one Deployment closer to what its object asks for.

        Raises:
            ApiError: The API refused something; it is to be tried again.
        """
        deployment = self._api.find(DEPLOYMENT, *key)
        if deployment is None or objects.deleting(deployment):
            return
        uid = objects.metadata(deployment)["uid"]
        pods = [
            pod
            for pod in self._api.snapshot(POD, key[0])
            if any(owner.get("uid") == uid for owner in objects.owners(pod))
        ]
        plan = reconcile(deployment, pods, self._api.clock())
        for name in plan.delete:
            self._api.delete(POD, key[0], name)
        refusal = self._create(plan.create, deployment)
        if refusal:
            failed = replica_failure(deployment, str(refusal), self._api.clock())
            plan.status["conditions"].append(failed)
        if plan.status != (deployment.get("status") or {}):
            changed = {**objects.copy(deployment), "status": plan.status}
            self._api.update(DEPLOYMENT, changed, subresource="status")
        if plan.wake_at is not None:
            self._queue.add_at(key, plan.wake_at)
        if refusal:
            raise refusal

    def _create(self, pods: list[Object], deployment: Object) -> ApiError | None:
        """Create pods until one is refused; returns the refusal."""
        for pod in pods:
            try:
                self._api.create(POD, pod)
            except ApiError as error:
                words = f"Error creating: {error}"
                self._recorder.event(deployment, "Warning", "FailedCreate", words)
                return error
        return None
