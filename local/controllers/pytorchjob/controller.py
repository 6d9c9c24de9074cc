"""The PyTorchJob controller: watches jobs, pods and services, and carries out their plans."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB, SERVICE
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.pytorchjob import pods, webhook
from kfp_pytorch.local.controllers.pytorchjob.reconcile import reconcile
from kfp_pytorch.local.controllers.trainingoperator.plan import JobController, Plan


class PyTorchJobController(JobController):
    """Runs the PyTorchJobs of one cluster."""

    kind = PYTORCHJOB
    deleted_reason = "SuccessfulDeletePod"

    def __init__(self, api: Api) -> None:
        super().__init__(api, pods.CONTROLLER_NAME)
        api.add_webhook(PYTORCHJOB, webhook.check)

    async def run(self) -> None:
        """Work until cancelled."""
        queue = self.queue
        await queue.run(
            queue.watch(PYTORCHJOB),
            queue.watch_owned(POD, PYTORCHJOB),
            queue.watch_owned(SERVICE, PYTORCHJOB),
        )

    def plan(self, job: Object) -> Plan:
        """Decide what to do about a job."""
        labels = pods.labels(job)
        found = self.dependents(POD, job, labels)
        owned = [each for each in found if objects.is_controlled_by(each, job)]
        return reconcile(job, owned, self.dependents(SERVICE, job, labels), self.api.clock())

    def created(self, job: Object, made: Object) -> None:
        """Record that a pod or a service was created."""
        kind = made["kind"]
        self.event(job, f"SuccessfulCreate{kind}", f"Created {kind.lower()}: {objects.name(made)}")

    def refused(self, job: Object, wanted: Object, error: ApiError) -> None:
        """Record that a pod or a service could not be created."""
        self.event(job, f"FailedCreate{wanted['kind']}", f"Error creating: {error}", "Warning")
