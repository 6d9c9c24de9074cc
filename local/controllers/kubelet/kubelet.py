"""The kubelet: runs the pods that are bound to this machine as processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubelet import memory
from kfp_pytorch.local.controllers.kubelet.container_config import Node, remove_folder
from kfp_pytorch.local.controllers.kubelet.pod_worker import PodWorker
from kfp_pytorch.local.controllers.kubelet.timing import Timing
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.controllers.kubernetes.node import NODE_NAME, gpu_request
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.processes import guard

# How often the memory of containers with a limit is measured.
_MEMORY_PERIOD_S = 0.2
_LOG = logging.getLogger(__name__)


class Kubelet:
    """Runs the pods of one cluster that are bound to the node `local`.

    `requests`: what pods are being asked; None where nobody counts that.
    """

    def __init__(
        self,
        api: Api,
        root: Path,
        ports: Ports,
        gpus: Sequence[int] = (),
        timing: Timing | None = None,
        requests: Requests | None = None,
    ) -> None:
        recorder = Recorder(api, "kubelet", NODE_NAME)
        self._api = api
        self._node = Node(api, root, ports, recorder, timing or Timing(), requests or Requests())
        self._gpus = list(gpus)
        self._gpus_of: dict[str, list[int]] = {}
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}

    async def run(self) -> None:
        """Work until cancelled; pods run until `stop`."""
        self._remove_folders()
        watching = asyncio.create_task(self._watch_memory())
        try:
            async for _, pod in self._api.watch(POD):
                if pod["spec"].get("nodeName") == NODE_NAME:
                    self._sync(pod)
        finally:
            watching.cancel()

    async def stop(self, longest: float) -> None:
        """Stop every pod, killing after `longest` seconds; wait until no process is left."""
        running = list(self._workers.values())
        for worker, _ in running:
            worker.stop(longest)
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)
        self._remove_folders()

    def _remove_folders(self) -> None:
        """Remove the folders of all pods, those of an earlier cluster included."""
        for folder in (self._node.root / "pods").glob("*/"):
            remove_folder(folder)

    def _sync(self, seen: Object) -> None:
        uid: str = objects.metadata(seen)["uid"]
        worker, _ = self._workers.get(uid, (None, None))
        # The event may be old: the pod may have been deleted since.
        pod = self._api.find(POD, objects.namespace(seen), objects.name(seen))
        if pod is None or objects.metadata(pod)["uid"] != uid:
            if worker:
                worker.stop(0)
            else:
                self._clean_up(seen)
            return
        if worker is None and (pod.get("status") or {}).get("phase") in (None, "Pending"):
            worker = self._start(pod)
        if worker and objects.is_terminating(pod):
            worker.stop(objects.metadata(pod).get("deletionGracePeriodSeconds", 0))

    def _start(self, pod: Object) -> PodWorker:
        uid: str = objects.metadata(pod)["uid"]
        worker = PodWorker(self._node, pod, self._gpus_for(pod))
        task = asyncio.create_task(worker.run())
        self._workers[uid] = (worker, task)
        task.add_done_callback(lambda done: self._forget(worker, pod, done))
        return worker

    def _forget(self, worker: PodWorker, pod: Object, task: asyncio.Task[None]) -> None:
        self._workers.pop(worker.uid, None)
        self._gpus_of.pop(worker.uid, None)
        self._node.requests.forget(worker.uid)
        if not task.cancelled() and task.exception():
            _LOG.error("the worker of pod %s failed", objects.name(pod), exc_info=task.exception())
        if self._api.find(POD, objects.namespace(pod), objects.name(pod)) is None:
            self._clean_up(pod)

    def _clean_up(self, pod: Object) -> None:
        """Remove the folder of a deleted pod; its logs and its claims stay."""
        meta = objects.metadata(pod)
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        remove_folder(self._node.root / "pods" / name)

    def _gpus_for(self, pod: Object) -> list[int] | None:
        if not self._gpus:
            return None
        taken = {gpu for gpus in self._gpus_of.values() for gpu in gpus}
        free = [gpu for gpu in self._gpus if gpu not in taken]
        chosen = free[: gpu_request(pod)]
        self._gpus_of[objects.metadata(pod)["uid"]] = chosen
        return chosen

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(_MEMORY_PERIOD_S)
            limited = {
                container.pid: container
                for worker, _ in self._workers.values()
                for container in worker.containers
                if container.pid and container.memory_limit
            }
            if limited:
                limits = {pid: each.memory_limit or 0.0 for pid, each in limited.items()}
                for pid in await asyncio.to_thread(_over_limit, limits):
                    if limited[pid].pid == pid:
                        limited[pid].kill_for_memory()


def _over_limit(limits: dict[int, float]) -> list[int]:
    """The guards whose descendants use more memory than their limit: process id → bytes."""
    parents = guard.parents()
    return [
        pid
        for pid, limit in limits.items()
        if memory.used(guard.descendants(pid, parents), limit) > limit
    ]
