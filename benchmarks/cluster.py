"""One API server for a whole run of the benchmark, and a scripted operator and kubelet.

Each measurement has a namespace of its own, and says how jobs there go (`Play`). What the server
is asked is counted by namespace too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from harness.api_server import ThreadedServer, kubeconfig, start_in_thread, write_kubeconfig
from harness.faults.plan import Request
from harness.objects import played

from kfp_pytorch.launcher.constants import CLAIM, POD, PYTORCHJOB, WORKFLOW, Kind
from kfp_pytorch.local.apiserver.errors import ApiError
from kfp_pytorch.local.apiserver.registry import NAMESPACE
from kfp_pytorch.local.apiserver.store.api import ADDED, DELETED

T = TypeVar("T")
Object = dict[str, Any]
FOREVER = float("inf")
# So long after its pods have ended does an operator write the end of a job.
_LATE = (0.05, 0.5)
_A_DAY = 86400.0
_TRACEBACK = "Traceback (most recent call last):\n" + "  File train.py, line 1\n" * 8


@dataclass(frozen=True)
class Play:
    """How the jobs of a namespace go."""

    runs: Callable[[], float]  # draws the seconds that a job runs; `FOREVER` until `Cluster.finish`
    fails: Callable[[], bool] = lambda: False  # draws whether a job fails
    line_every: float = 0.0  # seconds between two lines of the first pod's log; 0 for none


@dataclass
class Cluster:
    """The server with its script. Times are in seconds of the monotonic clock, by job name."""

    server: ThreadedServer  # the API server
    plays: dict[str, Play] = field(default_factory=dict)  # how jobs run, by namespace
    created: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)  # when its last condition was written
    failed: set[str] = field(default_factory=set)  # the jobs whose last condition was Failed
    _endings: dict[str, asyncio.Event] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def stage(self, namespace: str, play: Play) -> None:
        """Makes a namespace with a claim, in which jobs go like this."""
        metadata = {"name": "kfp-pytorch", "namespace": namespace}
        size = {"requests": {"storage": "1Gi"}}
        claim = {
            "metadata": metadata,
            "spec": {"accessModes": ["ReadWriteMany"], "resources": size},
        }
        self.plays[namespace] = play

        def make() -> None:
            self.server.api.create(NAMESPACE, {"metadata": {"name": namespace}})
            self.server.api.create(CLAIM, claim)
            self._endings[namespace] = asyncio.Event()

        self.server.call(make)

    def finish(self, namespace: str) -> None:
        self.server.call(self._endings[namespace].set)

    def kubeconfig(self, namespace: str) -> Path:
        path = self.server.kubeconfig.with_name(f"kubeconfig-{namespace}")
        if not path.exists():
            write_kubeconfig(path, kubeconfig(self.server.url, namespace=namespace))
        return path

    def step_pod(self, namespace: str, name: str) -> str:
        """Makes the pod that a step runs in, and the Workflow of its run; returns the pod's uid."""
        run = f"run-{name}"
        flow = {"metadata": {"name": run, "namespace": namespace}}
        made = self.server.call(self.server.api.create, WORKFLOW, flow)
        owner = {"apiVersion": WORKFLOW.api_version, "kind": WORKFLOW.kind, "name": run}
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": {"pipeline/runid": run},
            "ownerReferences": [owner | {"uid": made["metadata"]["uid"]}],
        }
        obj = {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "python"}]}}
        made = self.server.call(self.server.api.create, POD, obj)
        return str(made["metadata"]["uid"])

    def requests(self, namespace: str, since: float = 0.0) -> list[Request]:
        """What the server was asked about a namespace since a time of the monotonic clock."""
        part = f"/namespaces/{namespace}/"
        recent = itertools.takewhile(lambda r: r.time >= since, reversed(self.server.requests))
        return [r for r in recent if part in r.path][::-1]

    async def run(self) -> None:
        """Plays the operator and the kubelet."""
        burying = asyncio.create_task(self._bury())
        try:
            async for change, job in self.server.api.watch(PYTORCHJOB):
                metadata = job["metadata"]
                if change == DELETED and metadata["uid"] in self._tasks:
                    # Its log would be written for ever.
                    self._tasks.pop(metadata["uid"]).cancel()
                if change == ADDED and metadata["namespace"] in self.plays:
                    self.created[metadata["name"]] = time.monotonic()
                    self._tasks[metadata["uid"]] = asyncio.create_task(self._play(job))
        finally:
            burying.cancel()

    async def _bury(self) -> None:
        async for change, pod in self.server.api.watch(POD):
            if change != DELETED and pod["metadata"].get("deletionTimestamp"):
                where = (pod["metadata"]["namespace"], pod["metadata"]["name"])
                with contextlib.suppress(ApiError):
                    self.server.api.delete(POD, *where, grace=0)

    async def _play(self, job: Object) -> None:
        namespace = job["metadata"]["namespace"]
        play = self.plays[namespace]
        # A launcher that was stopped has deleted its job: the script ends there.
        with contextlib.suppress(ApiError):
            await asyncio.sleep(0.05)
            self._conditions(job, "Created")
            await asyncio.sleep(0.05)
            specs = job["spec"]["pytorchReplicaSpecs"]
            replicas = [(role, i) for role in specs for i in range(specs[role]["replicas"])]
            pods = [self._pod(job, *replica) async for replica in _bit_by_bit(replicas)]
            async for pod in _bit_by_bit(pods):
                self._pod_status(pod, "Running", {"running": {"startedAt": played.now()}})
            self._conditions(job, "Created", "Running")
            await self._running(pods[0], namespace, play)
            await self._end(job, pods, fails=play.fails())

    async def _running(self, pod: Object, namespace: str, play: Play) -> None:
        seconds, ending = play.runs(), self._endings[namespace].wait()
        writer = asyncio.create_task(self._write_log(pod, play.line_every))
        try:
            await asyncio.wait_for(ending, None if seconds == FOREVER else seconds)
        except TimeoutError:
            return
        finally:
            writer.cancel()

    async def _end(self, job: Object, pods: list[Object], *, fails: bool) -> None:
        async for number, pod in _bit_by_bit(enumerate(pods)):
            self._pod_status(pod, *_ending(fails=fails, rank=number))
        await asyncio.sleep(random.uniform(*_LATE))
        if fails:
            self.failed.add(job["metadata"]["name"])
        self._conditions(job, "Created", "Running=False", "Failed" if fails else "Succeeded")
        self.ended[job["metadata"]["name"]] = time.monotonic()

    def _conditions(self, job: Object, *types: str) -> None:
        """Writes a job's conditions, such as `Running` or `Running=False`."""
        written = [played.condition(words, played.now()) for words in types]
        self._status(PYTORCHJOB, job, {"conditions": written})

    def _pod(self, job: Object, role: str, index: int) -> Object:
        template = job["spec"]["pytorchReplicaSpecs"][role]["template"]
        spec = template["spec"] | {"nodeName": f"node-{index % 64}"}
        return self.server.api.create(POD, played.pod(job, role.lower(), index, spec))

    def _pod_status(self, pod: Object, phase: str, state: Object) -> None:
        containers = [played.container(**state)]
        self._status(POD, pod, {"phase": phase, "containerStatuses": containers})

    def _status(self, kind: Kind, obj: Object, fields: Object) -> None:
        def change(current: Object) -> None:
            current["status"] = {**(current.get("status") or {}), **fields}

        where = (obj["metadata"]["namespace"], obj["metadata"]["name"])
        self.server.api.mutate(kind, *where, change, "status")

    async def _write_log(self, pod: Object, every: float) -> None:
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        path = self.server.log_root / name / "pytorch" / "0.log"
        path.parent.mkdir(parents=True)
        step = 0
        with path.open("a", buffering=1) as file:
            while True:
                stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
                file.write(f"{stamp} stdout F step={step} loss={1 / (1 + step):.4f} lr=0.001\n")
                step += 1
                await asyncio.sleep(every or _A_DAY)


@contextmanager
def cluster(folder: Path, *, bookmark_every: float = 60.0) -> Iterator[Cluster]:
    """Runs the server with its script, in a thread; bookmarks come every so many seconds."""
    # A server that ends during a request logs a long error.
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    started = Cluster(start_in_thread(folder, bookmark_every_s=bookmark_every))
    playing = started.server.run(started.run())
    try:
        yield started
    finally:
        playing.cancel()
        started.server.stop()


async def _bit_by_bit(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with time for the server's other work after some of them."""
    for number, item in enumerate(items):
        if number % 16 == 15:
            await asyncio.sleep(0)
        yield item


def _ending(*, fails: bool, rank: int) -> tuple[str, Object]:
    error = {"type": "ValueError", "message": "the loss is not a number", "traceback": _TRACEBACK}
    error |= {"rank": rank, "time": 1764230000.5 + rank}
    result: Object = {"status": "failed", "error": error}
    if not fails:
        result = {"status": "succeeded", "metrics": {"loss": 0.03}}
    when, text = played.now(), json.dumps({"version": 1} | result)
    state = played.end(int(fails), text, started=when, finished=when)
    return "Failed" if fails else "Succeeded", {"terminated": state}
