"""The PyTorchJob operator: watches jobs, pods and services, and does what `reconcile` decides."""

from __future__ import annotations

import asyncio

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB, SERVICE, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue
from kfp_pytorch.local.controllers.pytorchjob import pods, webhook
from kfp_pytorch.local.controllers.pytorchjob.pods import Object
from kfp_pytorch.local.controllers.pytorchjob.reconcile import Plan, reconcile


class Operator:
    """Runs the PyTorchJobs of one cluster.

    Args:
        api: The cluster's objects.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorder = Recorder(api, pods.CONTROLLER_NAME)
        self._queue = WorkQueue(api, self.reconcile)
        api.add_webhook(PYTORCHJOB, webhook.check)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._watch_jobs())
            for kind in (POD, SERVICE):
                group.create_task(self._watch_dependents(kind))

    async def _watch_jobs(self) -> None:
        async for _, job in self._api.watch(PYTORCHJOB):
            self._queue.add((objects.namespace(job), objects.name(job)))

    async def _watch_dependents(self, kind: Kind) -> None:
        async for _, each in self._api.watch(kind):
            self._queue.add_controller(each, PYTORCHJOB)

    def reconcile(self, key: Key) -> None:
        """Bring one job closer to what its object asks for.

        Raises:
            ApiError: The API refused something; it is to be tried again.
        """
        job = self._api.find(PYTORCHJOB, *key)
        if job is None:
            return
        owned = [each for each in self._dependents(POD, job) if _controlled(each, job)]
        services = self._dependents(SERVICE, job)
        plan = reconcile(job, owned, services, self._api.clock())
        self._carry_out(plan, job)
        if plan.wake_at is not None:
            self._queue.add_at(key, plan.wake_at)

    def _dependents(self, kind: Kind, job: Object) -> list[Object]:
        wanted = pods.labels(job).items()
        found = self._api.snapshot(kind, objects.namespace(job))
        return [each for each in found if wanted <= objects.labels(each).items()]

    def _carry_out(self, plan: Plan, job: Object) -> None:
        for name in plan.delete_pods:
            self._delete(POD, name, job)
        for name in plan.delete_services:
            self._delete(SERVICE, name, job)
        if plan.delete_job:
            uid = objects.metadata(job)["uid"]
            self._api.delete(PYTORCHJOB, objects.namespace(job), objects.name(job), uid=uid)
            self._say(job, "SuccessfulDeletePod", f"Deleted job: {objects.name(job)}")
            return
        for each in plan.create:
            self._create(each, job)
        for note in plan.notes:
            self._recorder.event(job, note.type, note.reason, note.message)
        self._write_status(plan, job)

    def _write_status(self, plan: Plan, job: Object) -> None:
        if plan.status != (job.get("status") or {}):
            changed = {**objects.copy(job), "status": plan.status}
            self._api.update(PYTORCHJOB, changed, subresource="status")

    def _say(self, job: Object, reason: str, message: str) -> None:
        self._recorder.event(job, "Normal", reason, message)

    def _delete(self, kind: Kind, name: str, job: Object) -> None:
        namespace = objects.namespace(job)
        if self._api.find(kind, namespace, name) is not None:
            self._api.delete(kind, namespace, name)
            self._say(job, f"SuccessfulDelete{kind.kind}", f"Deleted {kind.kind.lower()}: {name}")

    def _create(self, each: Object, job: Object) -> None:
        kind = POD if each["kind"] == POD.kind else SERVICE
        try:
            self._api.create(kind, each)
        except ApiError as error:
            reason = f"FailedCreate{kind.kind}"
            self._recorder.event(job, "Warning", reason, f"Error creating: {error}")
            raise
        name = objects.name(each)
        self._say(job, f"SuccessfulCreate{kind.kind}", f"Created {kind.kind.lower()}: {name}")


def _controlled(each: Object, job: Object) -> bool:
    uid = objects.metadata(job)["uid"]
    return any(owner.get("controller") and owner["uid"] == uid for owner in objects.owners(each))
