"""One pod of this machine, from its binding to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.registry import SECRET
from kfp_pytorch.local.apiserver.store.api import ApiError
from kfp_pytorch.local.controllers.kubelet import pod_status, volumes
from kfp_pytorch.local.controllers.kubelet.container import Container
from kfp_pytorch.local.controllers.kubelet.container_config import Node, Place
from kfp_pytorch.local.controllers.kubelet.timing import sleep
from kfp_pytorch.local.controllers.kubelet.volumes import VolumeError

_MOUNT_RETRY_S = 1.0
_GRACE_S = 30
# How much of its grace period a pod may spend on what it was asked before it is terminated.
_DRAIN_SHARE = 0.75
# Source: kubernetes pkg/kubelet/active_deadline.go.
_DEADLINE_EXCEEDED = {
    "reason": "DeadlineExceeded",
    "message": "Pod was active on the node longer than the specified deadline",
}
_LOG = logging.getLogger(__name__)


class PodWorker:
    """Runs one pod. `gpus`: the numbers of its own; None where this machine has none."""

    def __init__(self, node: Node, pod: Object, gpus: Sequence[int] | None) -> None:
        self._node = node
        self._namespace, self._name = objects.namespace(pod), objects.name(pod)
        self.uid: str = objects.metadata(pod)["uid"]
        self._stopping = asyncio.Event()
        self._evicted: Object | None = None
        self._ended = False
        self._grace = 0.0
        self.folder = node.root / "pods" / f"{self._namespace}_{self._name}_{self.uid}"
        pod = {**pod, "status": {**(pod.get("status") or {}), "podIP": loopback.ADDRESS}}
        pod["status"]["hostIP"] = loopback.ADDRESS
        self._place = Place(node, pod, self.folder, {}, gpus)
        spec = pod["spec"]
        policy = spec.get("restartPolicy", "Always")
        # An init container that succeeded is not restarted under any policy of the pod.
        initial_policy = "OnFailure" if policy == "Always" else policy
        self._initial = []
        for each in spec.get("initContainers") or []:
            sidecar = each.get("restartPolicy") == "Always"
            self._initial.append(self._container(each, "Always" if sidecar else initial_policy))
            self._initial[-1].state.sidecar = sidecar
        self._beside: list[asyncio.Task[bool]] = []
        self._draining: asyncio.Task[None] | None = None
        self._main = [self._container(each, policy) for each in spec["containers"]]

    def _container(self, spec: Object, policy: str) -> Container:
        return Container(self._place, spec, policy, self.write_status)

    @property
    def containers(self) -> list[Container]:
        """All of its containers."""
        return [*self._initial, *self._main]

    async def run(self) -> None:
        """Run the pod until all of its containers have ended."""
        self.write_status()
        deadline = self._place.pod["spec"].get("activeDeadlineSeconds")
        if deadline is None:
            await self._run()
            return
        timer = asyncio.get_running_loop().call_later(deadline, self._end_at_deadline)
        try:
            await self._run()
        finally:
            timer.cancel()

    async def _run(self) -> None:
        self._check_pull_secrets()
        mounted = await self._mount()
        for container in self.containers:
            container.place = replace(self._place, volumes=mounted)
        initialized = True
        for container in self._initial:
            initialized = (
                initialized and not self._stopping.is_set() and await self._init(container)
            )
        if initialized and not self._stopping.is_set():
            await asyncio.gather(*(container.run() for container in self._main))
        elif self._stopping.is_set() and not self._initial:
            for container in self._main:
                container.mark_unknown()
        await self._stop_sidecars()
        self.write_status()
        await sleep(self._node.timing.sync, self._stopping)
        self._ended = True
        self.write_status()
        self._confirm_deletion()

    async def _init(self, container: Container) -> bool:
        """Run an init container to its end, or a sidecar until it is up; whether it succeeded.

        Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/.
        """
        if not container.state.sidecar:
            return await container.run()
        running, up = (asyncio.create_task(each) for each in (container.run(), container.up.wait()))
        self._beside.append(running)
        await asyncio.wait([running, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        return container.up.is_set()

    async def _stop_sidecars(self) -> None:
        grace = self._place.pod["spec"].get("terminationGracePeriodSeconds", _GRACE_S)
        sidecars = [each for each in self._initial if each.state.sidecar]
        for container in reversed(sidecars):
            container.stop(grace)
        await asyncio.gather(*self._beside)

    def stop(self, grace: float) -> None:
        """Terminate the pod's containers and kill them after `grace` seconds; sidecars last.

        They are terminated when what they were asked has been answered, most of `grace` at the
        latest: an ingress of a cluster learns of a pod's end before the pod does, too.
        """
        if self._stopping.is_set() and grace >= self._grace:
            return  # one SIGTERM is enough
        self._grace = grace
        self._stopping.set()
        self._write_status(ended=False)
        first = (
            self._main if grace > 0 and any(each.pid for each in self._main) else self.containers
        )
        if self._node.requests.leave(self.uid) and grace > 0:
            self._draining = asyncio.create_task(self._stop_drained(first, grace))
            return
        for container in first:
            container.stop(grace)

    async def _stop_drained(self, containers: Sequence[Container], grace: float) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        await self._node.requests.drained(self.uid, _DRAIN_SHARE * grace)
        for container in containers:
            container.stop(grace - (now() - began))

    def _end_at_deadline(self) -> None:
        self._evicted = _DEADLINE_EXCEEDED
        pod = self._place.pod
        self._node.recorder.event(
            pod, "Normal", _DEADLINE_EXCEEDED["reason"], _DEADLINE_EXCEEDED["message"]
        )
        self.stop(pod["spec"].get("terminationGracePeriodSeconds", _GRACE_S))

    def write_status(self) -> None:
        """Write the pod's status from its containers' states."""
        stopped = self._stopping.is_set() and all(each.state.ended for each in self.containers)
        self._write_status(ended=self._ended or stopped)

    def _write_status(self, *, ended: bool) -> None:
        initial = [container.state for container in self._initial]
        main = [container.state for container in self._main]

        def changed(pod: Object) -> None:
            if objects.metadata(pod)["uid"] == self.uid:
                now = self._node.api.clock()
                pod["status"] = pod_status.pod_status(
                    pod, initial, main, now, ended=ended, evicted=self._evicted
                )

        # A pod that was force deleted has no status to write.
        with contextlib.suppress(ApiError):
            self._node.api.mutate(POD, self._namespace, self._name, changed, "status")

    def _check_pull_secrets(self) -> None:
        """Warn of missing pull secrets; the image may be pulled without them."""
        place = self._place
        named = [each.get("name", "") for each in place.pod["spec"].get("imagePullSecrets") or []]
        missing = ", ".join(name for name in named if place.find(SECRET, name) is None)
        if missing:
            reason = "FailedToRetrieveImagePullSecret"
            message = f"Unable to retrieve some image pull secrets ({missing}); attempting to pull"
            message += " the image may not succeed."
            self._node.recorder.event(place.pod, "Warning", reason, message)

    async def _mount(self) -> dict[str, Path]:
        """Prepare the pod's volumes, once all that they refer to exists."""
        while not self._stopping.is_set():
            place = self._place
            try:
                return volumes.prepare(place.pod, place.folder, place.node.root, place.find)
            except (VolumeError, OSError) as error:
                self._node.recorder.event(place.pod, "Warning", "FailedMount", str(error))
            await sleep(_MOUNT_RETRY_S, self._stopping)
        return {}

    def _confirm_deletion(self) -> None:
        """Remove a deleted pod from the API, now that no process of it runs."""
        pod = self._node.api.find(POD, self._namespace, self._name)
        if pod is None or not objects.is_terminating(pod):
            return
        try:
            self._node.api.delete(POD, self._namespace, self._name, uid=self.uid, grace=0)
        except ApiError as error:
            _LOG.debug("pod %s/%s: %s", self._namespace, self._name, error)
