"""The InferenceService controller: creates Deployment, Service and autoscaler, writes the status.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice`. Which changes start a
reconciliation is as measured on v0.19.
"""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    KNATIVE_REVISION,
    POD,
    SERVING_RUNTIME,
    Kind,
)
from kfp_pytorch.local.apiserver import errors, objects, registry
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, ApiError
from kfp_pytorch.local.controllers.kserve import predictor, webhook
from kfp_pytorch.local.controllers.kserve.knative.mode import Knative
from kfp_pytorch.local.controllers.kserve.parts import Parts
from kfp_pytorch.local.controllers.kserve.runtimes import NotHere, Refusal
from kfp_pytorch.local.controllers.kserve.standard import Standard
from kfp_pytorch.local.controllers.kserve.status import refused
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.one_machine import WEBHOOK
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.controllers.kubernetes.status import condition, write
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

FINALIZER = "inferenceservice.finalizers"


class InferenceServiceController:
    """Runs the InferenceServices of one cluster."""

    def __init__(self, api: Api, ports: Ports, requests: Requests) -> None:
        self._api = api
        self._parts = Parts(api, ports, requests)
        self._modes: dict[str, Standard | Knative] = {
            "Standard": Standard(self._parts),
            "Knative": Knative(self._parts),
        }
        # What each pod's status said when it was last seen, of what starts a reconciliation.
        self._seen: dict[str, list[Any]] = {}
        self._recorder = Recorder(api, "v1beta1Controllers")
        self._queue = WorkQueue(api, self.reconcile)
        api.add_mutating_webhook(INFERENCE_SERVICE, webhook.fill_in)
        api.add_webhook(INFERENCE_SERVICE, webhook.check)
        if KNATIVE_REVISION not in {each.kind for each in api.registry}:
            api.add_webhook(INFERENCE_SERVICE, webhook.refuse_knative)
        api.add_webhook(INFERENCE_SERVICE, self._check_runs_here)

    async def run(self) -> None:
        """Work until cancelled."""
        queue = self._queue
        try:
            await queue.run(
                queue.watch(INFERENCE_SERVICE),
                queue.watch_owned(DEPLOYMENT, INFERENCE_SERVICE),
                self._watch_pods(),
                self._watch_runtimes(SERVING_RUNTIME),
                self._watch_runtimes(registry.CLUSTER_SERVING_RUNTIME),
            )
        finally:
            self._parts.close_all()

    async def _watch_pods(self) -> None:
        """Route requests by every change of a pod; reconcile by those that the mode watches."""
        async for change, pod in self._api.watch(POD):
            name = objects.labels(pod).get(predictor.POD_LABEL)
            if not name:
                continue
            key, uid = (objects.namespace(pod), name), objects.metadata(pod)["uid"]
            service = self._api.find(INFERENCE_SERVICE, *key)
            if change == DELETED:
                self._seen.pop(uid, None)
            if service is None or not (service.get("status") or {}).get("deploymentMode"):
                continue
            mode = self._modes[webhook.mode_of(service)]
            mode.route(service)
            now = [(pod.get("status") or {}).get(field) for field in mode.watched]
            if change != DELETED and self._seen.setdefault(uid, now) != now:
                self._seen[uid] = now
                self._queue.add_key(key)

    async def _watch_runtimes(self, kind: Kind) -> None:
        async for _ in self._api.watch(kind):
            for service in self._api.snapshot(INFERENCE_SERVICE):
                self._queue.add(service)

    def _check_runs_here(self, service: Object) -> None:
        """Refuse a new service at once whose model server can never run on this machine."""
        if objects.metadata(service).get("resourceVersion"):
            return
        try:
            predictor.make_deployment(service, self._parts.runtime_of(service), [])
        except NotHere as refusal:
            raise errors.denied(WEBHOOK, refusal.message) from None
        except Refusal:
            return  # KServe takes it, and says so in its status

    def reconcile(self, key: Key) -> None:
        """Bring one InferenceService closer to its spec. Raises ApiError: it is to be retried."""
        service = self._api.find(INFERENCE_SERVICE, *key)
        if service is None:
            return
        if objects.is_terminating(service):
            self._finalize(service)
            return
        if FINALIZER not in objects.finalizers(service):
            service = self._set_finalizers(service, [*objects.finalizers(service), FINALIZER])
        now, mode = self._api.clock(), self._modes[webhook.mode_of(service)]
        try:
            runtime = mode.apply(service)
        except Refusal as refusal:
            self._recorder.event(service, "Warning", "InternalError", refusal.event)
            found = refused(service, refusal, webhook.mode_of(service), now)
            write(self._api, INFERENCE_SERVICE, service, found)
        except ApiError as error:
            self._recorder.event(service, "Warning", "InternalError", error.message)
            found = mode.status(service, now, error=error.message)
            write(self._api, INFERENCE_SERVICE, service, found)
            raise
        else:
            found = mode.status(service, now, runtime)
            write(self._api, INFERENCE_SERVICE, service, found)
            self._report_ready(service, {"status": found})

    def _report_ready(self, service: Object, after: Object) -> None:
        was, is_now = (condition(each, "Ready").get("status") for each in (service, after))
        if is_now == "True" and was != "True":
            message = f"InferenceService [{objects.name(service)}] is Ready"
            self._recorder.event(service, "Normal", "InferenceServiceReady", message)

    def _set_finalizers(self, service: Object, finalizers: list[str]) -> Object:
        changed = objects.copy(service)
        changed["metadata"]["finalizers"] = finalizers
        return self._api.update(INFERENCE_SERVICE, changed)

    def _finalize(self, service: Object) -> None:
        self._parts.close(service)
        left = [each for each in objects.finalizers(service) if each != FINALIZER]
        if left != objects.finalizers(service):
            self._set_finalizers(service, left)
