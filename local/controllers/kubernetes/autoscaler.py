"""The HorizontalPodAutoscaler controller: keeps replicas within their bounds.

There are no metrics, so that it scales by the bounds alone. Source: kubernetes
`pkg/controller/podautoscaler/horizontal.go`.
"""

from __future__ import annotations

from datetime import timedelta

from kfp_pytorch.launcher.constants import DEPLOYMENT
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import AUTOSCALER
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

SYNC_PERIOD_S = 15.0


class AutoscalerController:
    """Runs the HorizontalPodAutoscalers of one cluster, `sync_period` seconds after each change."""

    def __init__(self, api: Api, sync_period: float = SYNC_PERIOD_S) -> None:
        self._api = api
        self._period = timedelta(seconds=sync_period)
        self._recorder = Recorder(api, "horizontal-pod-autoscaler")
        self._queue = WorkQueue(api, self.reconcile)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run(self._watch())

    async def _watch(self) -> None:
        async for _, autoscaler in self._api.watch(AUTOSCALER):
            key = objects.namespace(autoscaler), objects.name(autoscaler)
            self._queue.add_at(key, self._api.clock() + self._period)

    def reconcile(self, key: Key) -> None:
        """Bring a Deployment's replicas within bounds. Raises ApiError: it is to be retried."""
        autoscaler = self._api.find(AUTOSCALER, *key)
        if autoscaler is None:
            return
        spec = autoscaler["spec"]
        target = self._api.find(DEPLOYMENT, key[0], spec["scaleTargetRef"]["name"])
        if target is None:
            return
        current = int(target["spec"]["replicas"])
        desired = min(max(current, spec.get("minReplicas", 1)), spec["maxReplicas"])
        if desired != current:
            self._scale(autoscaler, target, desired)
        counts = {"currentReplicas": current, "desiredReplicas": desired}
        status.write(self._api, AUTOSCALER, autoscaler, counts)

    def _scale(self, autoscaler: Object, target: Object, desired: int) -> None:
        changed = objects.copy(target)
        changed["spec"]["replicas"] = desired
        self._api.update(DEPLOYMENT, changed)
        bound = "below Spec.MinReplicas"
        if desired < int(target["spec"]["replicas"]):
            bound = "above Spec.MaxReplicas"
        message = f"New size: {desired}; reason: Current number of replicas {bound}"
        self._recorder.event(autoscaler, "Normal", "SuccessfulRescale", message)
