"""The scheduler: binds pods to this machine, or reports why they do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kfp_pytorch.launcher.constants import CLAIM, POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import NODE
from kfp_pytorch.local.apiserver.store.api import DELETED, Api
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.events import SchedulerRecorder
from kfp_pytorch.local.controllers.kubernetes.node import NODE_NAME, requests
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue
from kfp_pytorch.local.quantities import quantity

SCHEDULER = "default-scheduler"
_NOT_HELPFUL = "Preemption is not helpful for scheduling."
_NO_VICTIMS = "No preemption victims found for incoming pod."
# Source: kubernetes pkg/registry/core/pod/util.go.
_GATED = {
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


def misfit(pod: Object, node: Object, others: Iterable[Object], claims: Iterable[str]) -> str:
    """The scheduler's message on why a pod does not fit beside `others`; empty if it does."""
    there = set(claims)
    missing = [claim for claim in _claims(pod) if claim not in there]
    if missing:
        return _message(f'persistentvolumeclaim "{missing[0]}" not found', _NOT_HELPFUL)
    if not is_selected(pod, objects.labels(node)):
        return _message("1 node(s) didn't match Pod's node affinity/selector", _NOT_HELPFUL)
    requested, allocatable = requests(pod), node["status"]["allocatable"]
    lacking = _lacking(requested, allocatable, others)
    if lacking:
        # Where the whole node is too small, no pod's preemption would help.
        why = _NOT_HELPFUL if _lacking(requested, allocatable, ()) else _NO_VICTIMS
        return _message(", ".join(f"1 {each}" for each in lacking), why)
    return ""


def _message(reasons: str, preemption: str) -> str:
    """The scheduler's message, in the form of Kubernetes 1.34."""
    return (
        f"0/1 nodes are available: {reasons}. no new claims to deallocate, preemption: "
        f"0/1 nodes are available: 1 {preemption}"
    )


def _claims(pod: Object) -> list[str]:
    sources = (volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or [])
    return [source["claimName"] for source in sources if source]


def _lacking(
    requested: Mapping[str, float], allocatable: Mapping[str, str], others: Iterable[Object]
) -> list[str]:
    taken: dict[str, float] = {}
    for other in others:
        for name, amount in requests(other).items():
            taken[name] = taken.get(name, 0.0) + amount
    free = {name: quantity(amount) - taken.get(name, 0.0) for name, amount in allocatable.items()}
    lacking = [name for name, amount in requested.items() if amount > free.get(name, 0.0) + 1e-9]
    messages = {"pods": "Too many pods"}
    return sorted(messages.get(name, f"Insufficient {name}") for name in lacking)


def is_selected(pod: Object, labels: Mapping[str, str]) -> bool:
    """Whether a node with these labels is one of those that a pod selects."""
    spec = pod["spec"]
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = required["nodeSelectorTerms"] if required else []
    return not terms or any(
        all(_matches(each, labels) for each in term.get("matchExpressions") or []) for term in terms
    )


def _matches(expression: Object, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(expression["key"]), expression.get("values") or []
    held = {
        "In": value in wanted,
        "NotIn": value not in wanted,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return held.get(expression["operator"], False)


class Scheduler:
    """Binds the pods of one cluster to its node."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorder = SchedulerRecorder(api, SCHEDULER, NODE_NAME)
        self._queue = WorkQueue(api, self.schedule)
        self._unschedulable: dict[Key, None] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run(self._watch_pods(), self._watch_claims())

    async def _watch_pods(self) -> None:
        async for change, pod in self._api.watch(POD):
            if change == DELETED or status.phase(pod) in status.ENDED_PHASES:
                self._retry()
            elif not pod["spec"].get("nodeName"):
                self._queue.add(pod)

    async def _watch_claims(self) -> None:
        async for _ in self._api.watch(CLAIM):
            self._retry()

    def _retry(self) -> None:
        for key in self._unschedulable:
            self._queue.add_key(key)

    def schedule(self, key: Key) -> None:
        """Bind one pod, or report why it does not fit. Raises ApiError: it is to be retried."""
        self._unschedulable.pop(key, None)
        pod = self._api.find(POD, *key)
        if pod is None or pod["spec"].get("nodeName") or objects.is_terminating(pod):
            return
        if pod["spec"].get("schedulerName", SCHEDULER) != SCHEDULER:
            return
        if pod["spec"].get("schedulingGates"):
            # Whoever set them removes them, as a queue does.
            self._condition(pod, {"type": "PodScheduled", "status": "False", **_GATED})
            return
        why = self._misfit(pod)
        if why:
            self._unschedulable[key] = None
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self._condition(pod, {**condition, "message": why})
            self._recorder.event(pod, "Warning", "FailedScheduling", why)
        else:
            self._bind(pod)

    def _misfit(self, pod: Object) -> str:
        node = self._api.find(NODE, "", NODE_NAME)
        if node is None:
            return "no nodes available to schedule pods"
        others = [
            each
            for each in self._api.snapshot(POD)
            if each["spec"].get("nodeName") == NODE_NAME
            and status.phase(each) not in status.ENDED_PHASES
        ]
        claims = map(objects.name, self._api.snapshot(CLAIM, objects.namespace(pod)))
        return misfit(pod, node, others, claims)

    def _bind(self, pod: Object) -> None:
        def bound(fresh: Object) -> None:
            fresh["spec"]["nodeName"] = NODE_NAME

        namespace, name = objects.namespace(pod), objects.name(pod)
        pod = self._api.mutate(POD, namespace, name, bound)
        self._condition(pod, {"type": "PodScheduled", "status": "True"})
        message = f"Successfully assigned {namespace}/{name} to {NODE_NAME}"
        self._recorder.event(pod, "Normal", "Scheduled", message)

    def _condition(self, pod: Object, condition: Object) -> None:
        def changed(fresh: Object) -> None:
            old = status.condition(fresh, condition["type"])
            new = status.dated({**condition, "lastProbeTime": None}, old, self._api.clock())
            conditions = fresh.setdefault("status", {}).get("conditions") or []
            fresh["status"]["conditions"] = [*(each for each in conditions if each != old), new]

        self._api.mutate(POD, objects.namespace(pod), objects.name(pod), changed, "status")
