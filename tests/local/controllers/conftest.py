"""A cluster's controllers in the test's own event loop, with no server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import EVENT, POD, PYTORCHJOB, Kind
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import DELETED, Api, Change
from kfp_pytorch.local.apiserver.store.garbage_collector import Collector
from kfp_pytorch.local.controllers.kubelet.kubelet import Kubelet
from kfp_pytorch.local.controllers.kubelet.timing import Timing
from kfp_pytorch.local.controllers.kubernetes import claims, node, pod_admission
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.controllers.kubernetes.scheduler import Scheduler
from kfp_pytorch.local.controllers.mpijob.controller import MPIJobController
from kfp_pytorch.local.controllers.pytorchjob.controller import PyTorchJobController
from kfp_pytorch.local.controllers.trainjob.controller import TrainJobController, create_runtime
from kfp_pytorch.local.processes import guard

Object = dict[str, Any]
NAMESPACE = "default"
LIMIT_S = 120
# The kubelet's delays in tests that are not about them.
FAST = Timing(sync=0.02, crash_loop=0.05, first_backoff=0.1, longest_backoff=0.2)


class Controllers:
    """All controllers on one set of objects, and what tests ask of them."""

    def __init__(
        self, root: Path, gpus: Sequence[int], timing: Timing, definitions: Sequence[Object]
    ) -> None:
        self.root = root
        self.api = Api(Registry(definitions))
        self.ports, self.requests = Ports(self.api), Requests()
        self.kubelet = Kubelet(self.api, root, self.ports, gpus, timing, self.requests)
        self._last_states: dict[tuple[Kind, str], Object] = {}
        # Every state of every object, in order.
        self._history: dict[tuple[Kind, str], list[Object]] = {}
        self.api.on_change(self._see)
        node.create(self.api, len(gpus))
        pod_admission.install(self.api)
        create_runtime(self.api)

    @staticmethod
    def python(code: str) -> list[str]:
        """The command line of a Python that starts quickly."""
        return ["python", "-I", "-S", "-c", code]

    @staticmethod
    def state(pod: Object, container: str = "main") -> Object:
        """The status of a container; empty while it has none."""
        statuses = pod["status"].get("containerStatuses") or []
        return next((each for each in statuses if each["name"] == container), {})

    def ended(self, pod: Object, container: str = "main") -> Object:
        """How a container ended."""
        found: Object = self.state(pod, container)["state"]["terminated"]
        return found

    def waiting(self, pod: Object) -> Object:
        """Why the pod's container waits; empty while it does not, or only for its start."""
        waits = (self.state(pod).get("state") or {}).get("waiting") or {}
        return waits if "message" in waits else {}

    async def restarted(self, name: str, times: int) -> Object:
        """The pod when its container was started again so often."""
        return await self.until(
            POD, name, lambda pod: self.state(pod).get("restartCount", 0) >= times
        )

    def coroutines(self) -> list[Any]:
        return [
            self.kubelet.run(),
            PyTorchJobController(self.api).run(),
            MPIJobController(self.api, self.root).run(),
            TrainJobController(self.api).run(),
            Scheduler(self.api).run(),
            Collector(self.api).run(),
            claims.run(self.api, self.root),
        ]

    def create_pod(self, name: str, command: list[str], **container: Any) -> Object:
        """Creates a pod of one container; keys with a capital letter first belong to the pod."""
        spec = {key[:1].lower() + key[1:]: v for key, v in container.items() if key[:1].isupper()}
        own = {key: value for key, value in container.items() if not key[:1].isupper()}
        main = {"name": "main", "image": "python", "command": command, **own}
        meta = {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}
        spec = {"restartPolicy": "Never", "containers": [main], **spec}
        return self.api.create(POD, {"metadata": meta, "spec": spec})

    def create_job(self, name: str, replicas: dict[str, Object], **spec: Any) -> Object:
        meta = {"name": name, "namespace": NAMESPACE}
        body = {"metadata": meta, "spec": {"pytorchReplicaSpecs": replicas, **spec}}
        return self.api.create(PYTORCHJOB, body)

    async def until(self, kind: Kind, name: str, holds: Callable[[Object], Any]) -> Object:
        """The object as soon as something holds of it."""
        async with asyncio.timeout(LIMIT_S):
            async for change, obj in self.api.watch(kind, NAMESPACE):
                if obj["metadata"]["name"] == name and change != DELETED and holds(obj):
                    return obj
        raise AssertionError("the watch ended")

    async def deleted(self, kind: Kind, name: str) -> Object:
        """The object's last state, once it is deleted."""
        async with asyncio.timeout(LIMIT_S):
            while (kind, name) not in self._last_states:
                await asyncio.sleep(0.01)
        return self._last_states[kind, name]

    def history(self, kind: Kind, name: str) -> list[Object]:
        """The states that an object has been in, in order, across deletions of its name."""
        return self._history.get((kind, name), [])

    def _see(self, kind: Kind, change: Change) -> None:
        key = kind, change.object["metadata"]["name"]
        self._history.setdefault(key, []).append(change.object)
        if change.type == DELETED:
            self._last_states[kind, change.object["metadata"]["name"]] = change.object

    async def phase(self, name: str, *phases: str) -> Object:
        return await self.until(POD, name, lambda pod: pod["status"]["phase"] in phases)

    async def condition(
        self, job: str, type_: str, value: str = "True", kind: Kind = PYTORCHJOB
    ) -> Object:
        def holds(obj: Object) -> bool:
            found = obj.get("status", {}).get("conditions") or []
            return any(c["type"] == type_ and c["status"] == value for c in found)

        return await self.until(kind, job, holds)

    async def event(self, about: str, reason: str) -> Object:
        async with asyncio.timeout(LIMIT_S):
            async for _, event in self.api.watch(EVENT, NAMESPACE):
                if event["involvedObject"]["name"] == about and event["reason"] == reason:
                    return event
        raise AssertionError("the watch ended")

    def log(self, pod: Object, container: str = "main", restarts: int = 0) -> str:
        meta = pod["metadata"]
        name = f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        text = (self.root / "logs" / name / container / f"{restarts}.log").read_text()
        return "".join(line.split(" ", 3)[3] for line in text.splitlines(keepends=True))


def pytorchjob(
    master: int = 1, workers: int = 1, policy: str = "", status: Object | None = None, **spec: Any
) -> Object:
    """A PyTorchJob; what is no field of the spec belongs to its run policy."""
    specs = {"Master": replica(master, policy)} if master else {}
    if workers:
        specs["Worker"] = replica(workers, policy)
    own = {key: spec.pop(key) for key in list(spec) if key in ("elasticPolicy", "nprocPerNode")}
    body = {"pytorchReplicaSpecs": specs, "runPolicy": spec, **own}
    meta = {"name": "j", "namespace": "ns", "uid": "u"}
    return {"metadata": meta, "spec": body, **({"status": status} if status else {})}


def replica(count: int, policy: str = "") -> Object:
    container = {"name": "pytorch", "image": "i", "env": [{"name": "MINE", "value": "1"}]}
    meta = {"annotations": {"a": "b"}, "labels": {"mine": "x"}}
    template = {"metadata": meta, "spec": {"containers": [container]}}
    found = {"replicas": count, "template": template}
    return {**found, "restartPolicy": policy} if policy else found


@pytest.fixture
def make_job() -> Callable[..., Object]:
    """Makes a PyTorchJob of two nodes, or what is asked for."""
    return pytorchjob


Story = Callable[[Controllers], Awaitable[None]]


@pytest.fixture
def on_controllers(tmp_path: Path) -> Callable[..., None]:
    """Runs a story on a cluster of its own; nothing may run when it has ended."""

    def run(
        story: Story,
        *,
        gpus: Sequence[int] = (),
        timing: Timing = FAST,
        definitions: Sequence[Object] = (),
    ) -> None:
        before = set(guard.descendants(os.getpid()))
        asyncio.run(_run(story, Controllers(tmp_path / "root", gpus, timing, definitions)))
        assert not set(guard.descendants(os.getpid())) - before
        assert not list((tmp_path / "root").glob("pods/*"))

    return run


async def _run(story: Story, controllers: Controllers) -> None:
    tasks = [asyncio.create_task(each) for each in controllers.coroutines()]
    try:
        await story(controllers)
    finally:
        failed = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await controllers.kubelet.stop(2)
    assert not failed
