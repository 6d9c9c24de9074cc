"""What one reconciliation of a job does, and how it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime

from kfp_pytorch.launcher.constants import CONFIG_MAP, POD, SERVICE, Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

_CREATED = {
    each.kind: each for each in (POD, SERVICE, CONFIG_MAP, ROLE, ROLE_BINDING, SERVICE_ACCOUNT)
}


@dataclass(frozen=True)
class JobEvent:
    """An event to record about the job."""

    type: str  # `Normal` or `Warning`
    reason: str  # such as `SuccessfulCreatePod`
    message: str  # the text for a person


@dataclass
class Plan:
    """What a reconciliation does, in this order."""

    status: Object  # the job's status afterwards
    delete_pods: list[str] = field(default_factory=list)  # names of pods to delete
    delete_services: list[str] = field(default_factory=list)  # names of services to delete
    delete_job: bool = False  # whether the job itself has outlived its TTL
    update: list[Object] = field(default_factory=list)  # ConfigMaps to write anew
    create: list[Object] = field(default_factory=list)  # what the job is to own, in order
    events: list[JobEvent] = field(default_factory=list)  # events to record
    requeue_at: datetime | None = None  # when to reconcile again though nothing has changed


class JobController(ABC):
    """Reconciles the jobs of one kind. `name`: what its events come from."""

    kind: Kind
    # The event about a job that was deleted after its TTL.
    deleted_reason = "SuccessfulDeleteJob"

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.recorder = Recorder(api, name)
        self.queue = WorkQueue(api, self.reconcile)

    @abstractmethod
    async def run(self) -> None:
        """Work until cancelled."""

    @abstractmethod
    def plan(self, job: Object) -> Plan:
        """Decide what to do about a job."""

    @abstractmethod
    def created(self, job: Object, made: Object) -> None:
        """Record that something was created."""

    @abstractmethod
    def refused(self, job: Object, wanted: Object, error: ApiError) -> None:
        """Record that something could not be created."""

    def reconcile(self, key: Key) -> None:
        """Bring one job closer to its spec. Raises ApiError: it is to be retried."""
        job = self.api.find(self.kind, *key)
        if job is None:
            return
        plan = self.plan(job)
        self._carry_out(plan, job)
        if plan.requeue_at is not None:
            self.queue.add_at(key, plan.requeue_at)

    def dependents(self, kind: Kind, job: Object, labels: dict[str, str]) -> list[Object]:
        """The objects of a kind that have these labels, in the job's namespace."""
        found = self.api.snapshot(kind, objects.namespace(job))
        return [each for each in found if labels.items() <= objects.labels(each).items()]

    def event(self, job: Object, reason: str, message: str, type_: str = "Normal") -> None:
        """Record an event about a job."""
        self.recorder.event(job, type_, reason, message)

    def _carry_out(self, plan: Plan, job: Object) -> None:
        for name in plan.delete_pods:
            self._delete(POD, name, job)
        for name in plan.delete_services:
            self._delete(SERVICE, name, job)
        if plan.delete_job:
            uid = objects.metadata(job)["uid"]
            self.api.delete(self.kind, objects.namespace(job), objects.name(job), uid=uid)
            self.event(job, self.deleted_reason, f"Deleted job: {objects.name(job)}")
            return
        for each in plan.update:
            self.api.update(_CREATED[each["kind"]], each)
        for each in plan.create:
            self._create(each, job)
        for event in plan.events:
            self.event(job, event.reason, event.message, event.type)
        status.write(self.api, self.kind, job, plan.status)

    def _delete(self, kind: Kind, name: str, job: Object) -> None:
        namespace = objects.namespace(job)
        if self.api.find(kind, namespace, name) is not None:
            self.api.delete(kind, namespace, name)
            self.event(job, f"SuccessfulDelete{kind.kind}", f"Deleted {kind.kind.lower()}: {name}")

    def _create(self, each: Object, job: Object) -> None:
        try:
            made = self.api.create(_CREATED[each["kind"]], each)
        except ApiError as error:
            # Without a status: it is written at the end of a reconciliation only.
            self.refused(job, each, error)
            raise
        self.created(job, made)
