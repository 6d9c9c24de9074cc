"""The InferenceService controller: creates Deployment, Service and autoscaler, writes the status.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice`. Which changes start a
reconciliation is as measured on v0.19.
"""

from __future__ import annotations

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import DEPLOYMENT, INFERENCE_SERVICE, POD, SERVING_RUNTIME, Kind
from kfp_pytorch.local.apiserver import errors, objects, registry
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, ApiError
from kfp_pytorch.local.controllers.kserve import predictor, webhook
from kfp_pytorch.local.controllers.kserve.ingress import Backend, Ingresses, Target
from kfp_pytorch.local.controllers.kserve.runtimes import NotHere, Refusal, select_runtime
from kfp_pytorch.local.controllers.kserve.status import Observed, refused, status
from kfp_pytorch.local.controllers.kserve.storage import storage_variables
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.one_machine import WEBHOOK
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.controllers.kubernetes.status import condition, is_ready, write
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

FINALIZER = "inferenceservice.finalizers"


class InferenceServiceController:
    """Runs the InferenceServices of one cluster."""

    def __init__(self, api: Api, ports: Ports, requests: Requests) -> None:
        self._api = api
        self._ports = ports
        self._ingresses = Ingresses(requests)
        # The states of each pod's init containers when it was last seen.
        self._init_statuses: dict[str, list[Object]] = {}
        self._recorder = Recorder(api, "v1beta1Controllers")
        self._queue = WorkQueue(api, self.reconcile)
        api.add_mutating_webhook(INFERENCE_SERVICE, webhook.fill_in)
        api.add_webhook(INFERENCE_SERVICE, webhook.check)
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
            self._ingresses.close_all()

    async def _watch_pods(self) -> None:
        """Route requests by every change of a pod; reconcile by init containers' changes alone."""
        async for change, pod in self._api.watch(POD):
            name = objects.labels(pod).get(predictor.POD_LABEL)
            if not name:
                continue
            key, uid = (objects.namespace(pod), name), objects.metadata(pod)["uid"]
            service = self._api.find(INFERENCE_SERVICE, *key)
            if service is not None:
                self._route(service)
            now = (pod.get("status") or {}).get("initContainerStatuses") or []
            if change == DELETED:
                self._init_statuses.pop(uid, None)
            elif self._init_statuses.setdefault(uid, now) != now:
                self._init_statuses[uid] = now
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
            predictor.make_deployment(service, self._runtime_of(service), [])
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
        now = self._api.clock()
        try:
            runtime = self._apply(service)
        except Refusal as refusal:
            self._recorder.event(service, "Warning", "InternalError", refusal.event)
            write(self._api, INFERENCE_SERVICE, service, refused(service, refusal, now))
        except ApiError as error:
            self._recorder.event(service, "Warning", "InternalError", error.message)
            observed = self._observe(service, error=error.message)
            write(self._api, INFERENCE_SERVICE, service, status(service, observed, now))
            raise
        else:
            found = status(service, self._observe(service, runtime), now)
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
        self._ingresses.close(objects.metadata(service)["uid"])
        left = [each for each in objects.finalizers(service) if each != FINALIZER]
        if left != objects.finalizers(service):
            self._set_finalizers(service, left)

    def _apply(self, service: Object) -> str:
        """Create or change what belongs to the service; returns the runtime's name."""
        namespace, runtime = objects.namespace(service), self._runtime_of(service)
        account = service["spec"]["predictor"].get("serviceAccountName", "default")
        variables = storage_variables(
            service,
            self._api.find(registry.SERVICE_ACCOUNT, namespace, account),
            lambda name: self._api.find(registry.SECRET, namespace, name),
        )
        deployment = predictor.make_deployment(service, runtime, variables)
        self._write(DEPLOYMENT, deployment)
        self._write(registry.AUTOSCALER, predictor.make_autoscaler(service))
        service_object = predictor.make_service(service, deployment)
        if self._api.find(constants.SERVICE, namespace, objects.name(service_object)) is None:
            self._api.create(constants.SERVICE, service_object)
        return objects.name(runtime)

    def _runtime_of(self, service: Object) -> Object:
        runtimes = list(self._api.snapshot(SERVING_RUNTIME, objects.namespace(service)))
        runtimes += self._api.snapshot(registry.CLUSTER_SERVING_RUNTIME)
        return select_runtime(service, runtimes)

    def _write(self, kind: Kind, wanted: Object) -> None:
        """Create an object, or change its spec; replicas stay as the autoscaler set them."""
        existing = self._api.find(kind, objects.namespace(wanted), objects.name(wanted))
        if existing is None:
            self._api.create(kind, wanted)
            return
        kept = {key: value for key, value in existing["spec"].items() if key == "replicas"}
        changed = {**objects.copy(existing), "spec": {**kept, **objects.copy(wanted["spec"])}}
        self._api.update(kind, changed)

    def _observe(self, service: Object, runtime: str = "", error: str = "") -> Observed:
        where = objects.namespace(service), predictor.name_of(service)
        deployment = self._api.find(DEPLOYMENT, *where) or {}
        return Observed(deployment, self._pods(service), self._route(service), runtime, error)

    def _pods(self, service: Object) -> tuple[Object, ...]:
        found, name = self._api.snapshot(POD, objects.namespace(service)), objects.name(service)
        own = (pod for pod in found if objects.labels(pod).get(predictor.POD_LABEL) == name)
        return tuple(sorted(own, key=_age, reverse=True))

    def _route(self, service: Object) -> str:
        """Pass requests to the pods that are ready; returns the URL, which stays the same."""
        backends = [self._backend(pod) for pod in self._pods(service) if is_ready(pod)]
        return self._ingresses.route(objects.metadata(service)["uid"], [Target(100, backends)])

    def _backend(self, pod: Object) -> Backend:
        port = self._ports.of(pod, predictor.port_of(pod["spec"]))
        return Backend(objects.metadata(pod)["uid"], port)


def _age(pod: Object) -> tuple[str, int]:
    """Is higher for newer pods."""
    metadata = objects.metadata(pod)
    return str(metadata["creationTimestamp"]), int(metadata["resourceVersion"])
