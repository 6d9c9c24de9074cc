"""KServe in Standard mode: an InferenceService becomes a Deployment, a Service and a URL.

Source: kserve v0.20, `pkg/controller/v1beta1/inferenceservice` and
`pkg/apis/serving/v1beta1/inference_service_{status,validation}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kfp_pytorch.launcher.constants import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    POD,
    SERVICE,
    SERVING_RUNTIME,
    Kind,
)
from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.registry import CLUSTER_SERVING_RUNTIME, SECRET, SERVICE_ACCOUNT
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, ApiError
from kfp_pytorch.local.controllers.kserve.ingress import FrontDoors
from kfp_pytorch.local.controllers.kserve.predictor import (
    CONTAINER,
    DEFAULT_PORT,
    INITIALIZER,
    MODE_ANNOTATION,
    POD_LABEL,
    Refusal,
    predictor_deployment,
    predictor_name,
    predictor_service,
    select_runtime,
    storage_variables,
)
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.status import is_ready
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

Object = dict[str, Any]

WEBHOOK = "inferenceservice.kserve-webhook-server.validator"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_KNATIVE = ("Knative", "Serverless")
_STANDARD = "Standard"


@dataclass(frozen=True)
class Seen:
    """What there is of one InferenceService.

    Attributes:
        deployment: Its Deployment, or None.
        pods: Its pods that are not being deleted, the newest first.
        url: Where it is reached.
        runtime: The name of its runtime.
        refusal: Why KServe cannot serve it, or None.
        error: What the API refused to KServe, or an empty string.
    """

    deployment: Object | None = None
    pods: tuple[Object, ...] = ()
    url: str = ""
    runtime: str = ""
    refusal: Refusal | None = None
    error: str = ""


def check(service: Object) -> None:
    """Refuse an InferenceService that KServe's webhook would refuse.

    Raises:
        ApiError: 403, with what is wrong.
    """
    name, predictor = objects.name(service), service["spec"].get("predictor") or {}
    if not _NAME.fullmatch(name):
        why = f'the InferenceService "{name}" is invalid: a InferenceService name must consist of'
        raise errors.denied(
            WEBHOOK,
            f"{why} lower case alphanumeric characters or '-', and must start with alphabetical "
            f'character. (e.g. "my-name" or "abc-123", regex used for validation is '
            f"'{_NAME.pattern}')",
        )
    if "name" in (predictor.get("model") or {}):
        raise errors.denied(WEBHOOK, "the 'name' field is not allowed in standard predictor")
    mode = (objects.metadata(service).get("annotations") or {}).get(MODE_ANNOTATION, "")
    settled = (service.get("status") or {}).get("deploymentMode")
    if settled and mode and _mode(mode) != settled:
        words = f"deploymentMode cannot be changed from '{settled}' to '{mode}'"
        raise errors.denied(WEBHOOK, f"update rejected: {words}")


def _mode(given: str) -> str:
    return {"RawDeployment": _STANDARD, "Serverless": "Knative"}.get(given, given)


def status(service: Object, seen: Seen, now: datetime) -> Object:
    """The status of an InferenceService.

    Args:
        service: The InferenceService, with its status so far.
        seen: What there is of it.
        now: The time, in UTC.

    Returns:
        The status.
    """
    before = service.get("status") or {}
    predictor = _predictor_condition(seen)
    # An update leaves the ingress, and so Ready, as they were while old pods serve.
    ingress = {"type": "IngressReady", "status": "True"}
    if predictor["status"] != "True" and not before.get("url"):
        ingress = {**ingress, "status": "False", "reason": "Predictor ingress not created"}
    parts = [predictor, ingress]
    missing = next((each for each in parts if each["status"] != "True"), None)
    overall = {**(missing or ingress), "type": "Ready"}
    conditions = sorted([*parts, overall, _stopped()], key=lambda each: str(each["type"]))
    known = {each["type"]: each for each in before.get("conditions") or []}
    written: Object = {
        **before,
        "conditions": [_dated(each, known.get(each["type"], {}), now) for each in conditions],
        "deploymentMode": _STANDARD,
        "components": {"predictor": (before.get("components") or {}).get("predictor") or {}},
        "modelStatus": _model_status(before.get("modelStatus") or {}, seen, overall["status"]),
    }
    if seen.runtime:
        written["servingRuntimeName"] = seen.runtime
    if seen.deployment:
        observed = (seen.deployment.get("status") or {}).get("observedGeneration")
        written |= {"observedGeneration": observed} if observed else {}
    if predictor["status"] == "True":
        written |= {"url": seen.url, "address": {"url": seen.url}}
        written["components"] = {"predictor": {"url": seen.url}}
    return written


def _predictor_condition(seen: Seen) -> Object:
    """PredictorReady, from the conditions of the Deployment."""
    error = seen.refusal.message if seen.refusal else seen.error
    if error:
        words = {"reason": "ReconcileFailed", "message": error}
        return {"type": "PredictorReady", "status": "False", **words}
    found = ((seen.deployment or {}).get("status") or {}).get("conditions") or []
    by_type = {each["type"]: each for each in found}
    available, progressing = by_type.get("Available", {}), by_type.get("Progressing", {})
    if not available:
        return {"type": "PredictorReady", "status": "Unknown"}
    deciding = available
    if (
        progressing.get("status") == "False"
        or progressing.get("reason") == "NewReplicaSetAvailable"
    ):
        deciding = progressing
    if available["status"] == "False":
        deciding = available
    return {"type": "PredictorReady", **{k: deciding[k] for k in ("status", "reason", "message")}}


def _stopped() -> Object:
    return {"type": "Stopped", "status": "False", "severity": "Info"}


def _dated(condition: Object, known: Object, now: datetime) -> Object:
    same = known.get("status") == condition["status"]
    since = known.get("lastTransitionTime") if same else None
    return {**condition, "lastTransitionTime": since or objects.timestamp(now)}


def _model_status(before: Object, seen: Seen, overall: str) -> Object:
    """`modelStatus`: what the newest pod's containers say of the model."""
    states = dict(before.get("states") or {"activeModelState": ""})
    found = dict(before)
    copies = sum(map(is_ready, seen.pods))
    found["copies"] = {"failedCopies": 0, **({"totalCopies": copies} if copies else {})}
    failure = None
    if seen.refusal:
        target, transition = "FailedToLoad", "InvalidSpec"
        failure = {"reason": seen.refusal.reason, "message": seen.refusal.message}
    else:
        target, failure = _target_state(seen.pods, overall)
        transition = {"Loaded": "UpToDate", "FailedToLoad": "BlockedByFailedLoad"}.get(
            target, "InProgress"
        )
    if target == "Loaded":
        states["activeModelState"] = "Loaded"
    found |= {"states": {**states, "targetModelState": target}, "transitionStatus": transition}
    return found | ({"lastFailureInfo": failure} if failure else {})


def _target_state(pods: tuple[Object, ...], overall: str) -> tuple[str, Object | None]:
    if not pods:
        return "Pending", None
    pod = pods[0].get("status") or {}
    initial = _state(pod.get("initContainerStatuses"), INITIALIZER)
    ended = _failure(initial)
    if ended:
        return "FailedToLoad", ended
    if "running" in initial:
        return "Loading", None
    if overall == "True":
        return "Loaded", None
    ended = _failure(_state(pod.get("containerStatuses"), CONTAINER))
    return ("FailedToLoad", ended) if ended else ("Pending", None)


def _state(statuses: list[Object] | None, name: str) -> Object:
    """A container's state, with its last end unless it ended well since.

    An initializer that runs again after a failure has not mended it yet.
    """
    found = next((each for each in statuses or [] if each["name"] == name), {})
    state: Object = found.get("state") or {}
    again = "running" in state and name == INITIALIZER
    if again or (state.get("waiting") or {}).get("reason") == "CrashLoopBackOff":
        return {**state, **(found.get("lastState") or {})}
    return state


def _failure(state: Object) -> Object | None:
    ended = state.get("terminated") or {}
    if not ended.get("exitCode"):
        return None
    words = {"reason": "ModelLoadFailed", "message": ended.get("message", "")}
    return {**words, "exitCode": ended["exitCode"]}


class KServe:
    """Runs the InferenceServices of one cluster.

    Args:
        api: The cluster's objects.
        ports: Where pods listen.
    """

    def __init__(self, api: Api, ports: Ports) -> None:
        self._api = api
        self._ports = ports
        self._doors = FrontDoors()
        # What was last written of each Deployment: the API server fills in the rest.
        self._written: dict[str, Object] = {}
        self._recorder = Recorder(api, "v1beta1Controllers")
        self._queue = WorkQueue(api, self.reconcile)
        api.add_webhook(INFERENCE_SERVICE, check)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            await self._queue.run(
                self._watch_services(),
                *(self._watch_dependents(kind) for kind in (DEPLOYMENT, POD)),
                *(
                    self._watch_runtimes(kind)
                    for kind in (SERVING_RUNTIME, CLUSTER_SERVING_RUNTIME)
                ),
            )
        finally:
            self._doors.close_all()

    async def _watch_services(self) -> None:
        async for change, service in self._api.watch(INFERENCE_SERVICE):
            if change == DELETED:
                self._doors.close(objects.metadata(service)["uid"])
            else:
                self._queue.add(service)

    async def _watch_dependents(self, kind: Kind) -> None:
        async for change, each in self._api.watch(kind):
            if change == DELETED:
                self._written.pop(objects.metadata(each)["uid"], None)
            name = objects.labels(each).get(POD_LABEL)
            if name:
                self._queue.add_key((objects.namespace(each), name))

    async def _watch_runtimes(self, kind: Kind) -> None:
        async for _, _runtime in self._api.watch(kind):
            for service in self._api.snapshot(INFERENCE_SERVICE):
                self._queue.add(service)

    def reconcile(self, key: Key) -> None:
        """Bring one InferenceService closer to what its object asks for.

        Raises:
            ApiError: The API refused something; it is to be tried again.
        """
        service = self._api.find(INFERENCE_SERVICE, *key)
        if service is None or objects.deleting(service):
            return
        try:
            seen = self._look(service, self._apply(service))
        except Refusal as refusal:
            self._fail(service, Seen(refusal=refusal), refusal.message)
        except ApiError as error:
            self._fail(service, Seen(error=error.message), error.message)
            raise
        else:
            self._write_status(service, seen)

    def _fail(self, service: Object, why: Seen, words: str) -> None:
        self._recorder.event(service, "Warning", "InternalError", words)
        name = predictor_name(service)
        existing = self._api.find(DEPLOYMENT, objects.namespace(service), name)
        self._write_status(service, replace(why, deployment=existing, pods=self._pods(service)))

    def _write_status(self, service: Object, seen: Seen) -> None:
        found = status(service, seen, self._api.clock())
        if found != (service.get("status") or {}):
            changed = {**objects.copy(service), "status": found}
            self._api.update(INFERENCE_SERVICE, changed, subresource="status")

    def _apply(self, service: Object) -> str:
        """Create or change the Deployment and the Service; returns the runtime's name."""
        mode = (objects.metadata(service).get("annotations") or {}).get(MODE_ANNOTATION)
        if mode in _KNATIVE:
            raise Refusal(
                "InvalidPredictorSpec",
                "The resolved deployment mode of InferenceService is Knative, but Knative Serving "
                "is not available",
            )
        namespace = objects.namespace(service)
        runtimes = list(self._api.snapshot(SERVING_RUNTIME, namespace))
        runtimes += self._api.snapshot(CLUSTER_SERVING_RUNTIME)
        runtime = select_runtime(service, runtimes)
        account = service["spec"]["predictor"].get("serviceAccountName", "default")
        variables = storage_variables(
            service,
            self._api.find(SERVICE_ACCOUNT, namespace, account),
            lambda name: self._api.find(SECRET, namespace, name),
        )
        made = predictor_deployment(service, runtime, variables)
        self._write(DEPLOYMENT, made)
        self._write(SERVICE, predictor_service(service, made))
        return objects.name(runtime)

    def _write(self, kind: Kind, wanted: Object) -> None:
        existing = self._api.find(kind, objects.namespace(wanted), objects.name(wanted))
        if existing is None:
            existing = self._api.create(kind, wanted)
        elif kind == DEPLOYMENT and self._written.get(objects.metadata(existing)["uid"]) != wanted:
            existing = self._api.update(
                kind, {**objects.copy(existing), "spec": objects.copy(wanted["spec"])}
            )
        if kind == DEPLOYMENT:
            self._written[objects.metadata(existing)["uid"]] = wanted

    def _look(self, service: Object, runtime: str) -> Seen:
        pods = self._pods(service)
        port = self._doors.open(objects.metadata(service)["uid"], list(self._backends(pods)))
        made = self._api.find(DEPLOYMENT, objects.namespace(service), predictor_name(service))
        return Seen(made, pods, f"http://{loopback.HOST}:{port}", runtime)

    def _pods(self, service: Object) -> tuple[Object, ...]:
        found = [
            pod
            for pod in self._api.snapshot(POD, objects.namespace(service))
            if objects.labels(pod).get(POD_LABEL) == objects.name(service)
            and not objects.deleting(pod)
        ]
        return tuple(sorted(found, key=_age, reverse=True))

    def _backends(self, pods: tuple[Object, ...]) -> Iterator[int]:
        for pod in filter(is_ready, pods):
            ports = pod["spec"]["containers"][0].get("ports") or [{"containerPort": DEFAULT_PORT}]
            yield self._ports.of(pod, int(ports[0]["containerPort"]))


def _age(pod: Object) -> tuple[str, int]:
    """What newer pods have more of."""
    metadata = objects.metadata(pod)
    return str(metadata["creationTimestamp"]), int(metadata["resourceVersion"])
