"""The PyTorchJob controller: watches jobs, pods and services, and carries out their plans."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB, SERVICE, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue
from kfp_pytorch.local.controllers.pytorchjob import pods, webhook
from kfp_pytorch.local.controllers.pytorchjob.reconcile import Plan, reconcile


class PyTorchJobController:
    """Runs the PyTorchJobs of one cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorder = Recorder(api, pods.CONTROLLER_NAME)
        self._queue = WorkQueue(api, self.reconcile)
        api.add_webhook(PYTORCHJOB, webhook.check)

    async def run(self) -> None:
        """Work until cancelled."""
        queue = self._queue
        await queue.run(
            queue.watch(PYTORCHJOB),
            queue.watch_owned(POD, PYTORCHJOB),
            queue.watch_owned(SERVICE, PYTORCHJOB),
        )

    def reconcile(self, key: Key) -> None:
        """Bring one job closer to its spec. Raises ApiError: it is to be retried."""
        job = self._api.find(PYTORCHJOB, *key)
        if job is None:
            return
        owned = [each for each in self._dependents(POD, job) if objects.is_controlled_by(each, job)]
        plan = reconcile(job, owned, self._dependents(SERVICE, job), self._api.clock())
        self._carry_out(plan, job)
        if plan.requeue_at is not None:
            self._queue.add_at(key, plan.requeue_at)

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
            self._event(job, "SuccessfulDeletePod", f"Deleted job: {objects.name(job)}")
            return
        for each in plan.create:
            self._create(each, job)
        for event in plan.events:
            self._recorder.event(job, event.type, event.reason, event.message)
        status.write(self._api, PYTORCHJOB, job, plan.status)

    def _event(self, job: Object, reason: str, message: str) -> None:
        self._recorder.event(job, "Normal", reason, message)

    def _delete(self, kind: Kind, name: str, job: Object) -> None:
        namespace = objects.namespace(job)
        if self._api.find(kind, namespace, name) is not None:
            self._api.delete(kind, namespace, name)
            self._event(job, f"SuccessfulDelete{kind.kind}", f"Deleted {kind.kind.lower()}: {name}")

    def _create(self, each: Object, job: Object) -> None:
        kind = POD if each["kind"] == POD.kind else SERVICE
        try:
            self._api.create(kind, each)
        except ApiError as error:
            # Without a status: it is written at the end of a reconciliation only.
            message = f"Error creating: {error}"
            self._recorder.event(job, "Warning", f"FailedCreate{kind.kind}", message)
            raise
        message = f"Created {kind.kind.lower()}: {objects.name(each)}"
        self._event(job, f"SuccessfulCreate{kind.kind}", message)
