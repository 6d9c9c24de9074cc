"""The MPIJob controller: watches jobs, pods and ConfigMaps, and carries out their plans."""

from __future__ import annotations

import shlex
import sys
from http import HTTPStatus
from pathlib import Path

from kfp_pytorch.launcher.constants import CONFIG_MAP, MPIJOB, POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.mpijob import parts, pods, webhook
from kfp_pytorch.local.controllers.mpijob.reconcile import Owned, reconcile, refused
from kfp_pytorch.local.controllers.trainingoperator.job import Observed
from kfp_pytorch.local.controllers.trainingoperator.mpi import CONTROLLER_NAME
from kfp_pytorch.local.controllers.trainingoperator.plan import JobController, Plan
from kfp_pytorch.local.processes import beside

_RIGHTS = {each.kind: each for each in (SERVICE_ACCOUNT, ROLE, ROLE_BINDING)}


class MPIJobController(JobController):
    """Runs the MPIJobs of one cluster. `root`: the cluster's folder."""

    kind = MPIJOB

    def __init__(self, api: Api, root: Path) -> None:
        super().__init__(api, CONTROLLER_NAME)
        self._root = root
        webhook.install(api)

    async def run(self) -> None:
        """Work until cancelled."""
        queue = self.queue
        await queue.run(
            queue.watch(MPIJOB),
            queue.watch_owned(POD, MPIJOB),
            queue.watch_owned(CONFIG_MAP, MPIJOB),
        )

    def plan(self, job: Object) -> Plan:
        """Decide what to do about a job."""
        why = pods.problem(job)
        if why:
            return refused(job, why)
        job = pods.defaulted(job)
        found = self.dependents(POD, job, pods.labels(job))
        owned = [each for each in found if objects.is_controlled_by(each, job)]
        return reconcile(Observed(job, owned, self.api.clock()), self._owned(job))

    def _owned(self, job: Object) -> Owned:
        namespace = objects.namespace(job)
        missing = [
            each
            for each in parts.rights(job)
            if self.api.find(_RIGHTS[each["kind"]], namespace, objects.name(each)) is None
        ]
        config = self.api.find(CONFIG_MAP, namespace, pods.config_name(job))
        owned = config if config and objects.is_controlled_by(config, job) else None
        words = [sys.executable, "-I", "-S", beside.__file__, "exec"]
        return Owned(owned, missing, shlex.join([*words, str(self._root / "pods"), namespace]))

    def created(self, job: Object, made: Object) -> None:
        """Record that a pod was created."""
        if made["kind"] != POD.kind:
            return
        name = objects.name(made)
        if name == pods.launcher_name(job):
            self.event(job, "MPIJobRunning", f"launcher pod created success: {name}")
        else:
            self.event(job, "SuccessfulCreatePod", f"Created worker pod: {name}")

    def refused(self, job: Object, wanted: Object, error: ApiError) -> None:
        """Record that something could not be created."""
        name, kind = objects.name(wanted), wanted["kind"]
        if error.code == HTTPStatus.CONFLICT:
            message = f'Resource "{name}" of MPIJobKind "{kind}" already exists and is not managed '
            self.event(job, "ErrResourceExists", f"{message}by MPIJob", "Warning")
        elif kind == POD.kind:
            who = "launcher" if name == pods.launcher_name(job) else "worker"
            self.event(job, "MPIJobFailed", f"{who} pod created failed: {error}", "Warning")
