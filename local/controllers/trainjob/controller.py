"""The TrainJob controller: watches jobs and their pods, and carries out their plans."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import CLUSTER_TRAINING_RUNTIME, POD, SERVICE, TRAINJOB
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue
from kfp_pytorch.local.controllers.trainjob import pods, runtimes, webhook
from kfp_pytorch.local.controllers.trainjob.reconcile import Observed, Plan, reconcile

_CONTROLLER = "trainer-controller-manager"


class TrainJobController:
    """Runs the TrainJobs of one cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorder = Recorder(api, _CONTROLLER)
        # The uids of those that have failed, and do not say so yet.
        self._failed: set[str] = set()
        self._queue = WorkQueue(api, self.reconcile)
        webhook.install(api)

    async def run(self) -> None:
        """Work until cancelled."""
        queue = self._queue
        await queue.run(queue.watch(TRAINJOB), queue.watch_owned(POD, TRAINJOB))

    def reconcile(self, key: Key) -> None:
        """Bring one job closer to its spec. Raises ApiError: it is to be retried."""
        job = self._api.find(TRAINJOB, *key)
        runtime = None if job is None else runtimes.find(self._api, pods.defaulted(job))
        if job is None or runtime is None or not pods.is_ours(job):
            return
        plan = reconcile(self._observed(pods.defaulted(job), runtime))
        self._carry_out(plan, job)
        (self._failed.add if plan.failed else self._failed.discard)(objects.metadata(job)["uid"])
        if plan.requeue_at is not None:
            self._queue.add_at(key, plan.requeue_at)

    def _observed(self, job: Object, runtime: Object) -> Observed:
        found = self._api.snapshot(POD, objects.namespace(job))
        return Observed(
            job,
            runtimes.job_template(runtime, job),
            pods.nodes(job, runtime),
            [each for each in found if objects.is_controlled_by(each, job)],
            self._api.find(SERVICE, objects.namespace(job), objects.name(job)) is not None,
            self._api.clock(),
            has_failed=objects.metadata(job)["uid"] in self._failed,
        )

    def _carry_out(self, plan: Plan, job: Object) -> None:
        for name in plan.delete_pods:
            self._api.delete(POD, objects.namespace(job), name)
        for each in plan.create:
            self._create(each, job)
        status.write(self._api, TRAINJOB, job, plan.status)

    def _create(self, each: Object, job: Object) -> None:
        kind = POD if each["kind"] == POD.kind else SERVICE
        try:
            self._api.create(kind, each)
        except ApiError as error:
            words = f"TrainJob resources reconciliation failed: {error}"
            self._recorder.event(job, "Warning", "TrainJobResourcesCreationFailed", words)
            raise


def create_runtime(api: Api) -> None:
    """Create the runtime that the Trainer ships for torch."""
    api.create(CLUSTER_TRAINING_RUNTIME, objects.copy(runtimes.TORCH_DISTRIBUTED))
