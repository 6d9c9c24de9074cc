"""The ResourceQuota controller: writes what a quota limits and what of it pods use.

Of the names that a quota may have, it counts those of pods; the other ones are not enforced here.
Source: kubernetes `pkg/controller/resourcequota/resource_quota_controller.go`.
"""

from __future__ import annotations

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.registry import RESOURCE_QUOTA
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes import status
from kfp_pytorch.local.controllers.kubernetes.pod_admission import used, written
from kfp_pytorch.local.controllers.kubernetes.workqueue import Key, WorkQueue

_OF_PODS = ("pods", "count/pods", "cpu", "memory")
_PREFIXES = ("requests.", "limits.")


class QuotaController:
    """Keeps the statuses of the quotas of one cluster."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._queue = WorkQueue(api, self.reconcile)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._queue.run(self._queue.watch(RESOURCE_QUOTA), self._watch_pods())

    async def _watch_pods(self) -> None:
        async for _, pod in self._api.watch(POD):
            for quota in self._api.snapshot(RESOURCE_QUOTA, objects.namespace(pod)):
                self._queue.add(quota)

    def reconcile(self, key: Key) -> None:
        """Write the status of one quota. Raises ApiError: it is to be retried."""
        quota = self._api.find(RESOURCE_QUOTA, *key)
        if quota is None:
            return
        hard = (quota.get("spec") or {}).get("hard") or {}
        counted = [name for name in hard if name in _OF_PODS or name.startswith(_PREFIXES)]
        in_use = used(self._api, key[0])
        amounts = {name: written(in_use.get(name, 0.0)) for name in counted}
        status.write(self._api, RESOURCE_QUOTA, quota, {"hard": hard, "used": amounts})
