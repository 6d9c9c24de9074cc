"""A scripted operator and kubelet on an API server of the tests, and a record of what jobs did."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from harness.objects import played

from kfp_pytorch.launcher.constants import POD, PYTORCHJOB, STEP_ID_LABEL
from kfp_pytorch.local.apiserver.errors import ApiError
from kfp_pytorch.local.apiserver.store.api import DELETED, Api

Object = dict[str, Any]


class Record:
    """Every state that each job of ours ever had, as the server wrote it.

    Attributes:
        made: The uids of the jobs, oldest first.
        succeeded: The uids of those whose object ever said Succeeded and not Failed.
        alive: The uids of those that are there and have not ended.
        most_alive: The most that were ever alive at once.
    """

    def __init__(self, api: Api) -> None:
        self.made: list[str] = []
        self.succeeded: set[str] = set()
        self.alive: set[str] = set()
        self.most_alive = 0
        self.on = True
        api.on_change(self._see)

    def _see(self, kind: Any, change: Any) -> None:
        metadata = change.object["metadata"]
        if not self.on or kind != PYTORCHJOB or STEP_ID_LABEL not in (metadata.get("labels") or {}):
            return
        uid = metadata["uid"]
        if uid not in self.made:
            self.made.append(uid)
        true = true_conditions(change.object)
        if "Succeeded" in true and "Failed" not in true:
            self.succeeded.add(uid)
        over = change.type == DELETED or true & {"Succeeded", "Failed"}
        (self.alive.discard if over else self.alive.add)(uid)
        self.most_alive = max(self.most_alive, len(self.alive))


class Operator:
    """Lets each job run, and come to its end as the script says.

    Attributes:
        ends: How the next jobs end, `Succeeded` or `Failed`; after the last, `Succeeded`.
        ready: Tells, of a job's name, whether it may end.
    """

    def __init__(
        self, api: Api, namespace: str, ends: Iterable[str], ready: Callable[[str], bool]
    ) -> None:
        self.ends = deque(ends)
        self.ready = ready
        self._api = api
        self._namespace = namespace
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Plays until it is cancelled."""
        seen: set[str] = set()
        try:
            async for change, job in self._api.watch(PYTORCHJOB):
                uid = job["metadata"]["uid"]
                if change == DELETED or uid in seen or true_conditions(job):
                    continue
                seen.add(uid)
                task = asyncio.create_task(self._play(job))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        finally:
            for task in self._running:
                task.cancel()

    async def _play(self, job: Object) -> None:
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        try:
            self._say(name, uid, "Created")
            pod = self._api.create(POD, played.pod(job, "master", 0, played.small_spec()))
            self._status(pod, "Running", played.container(running={"startedAt": played.now()}))
            self._say(name, uid, "Created", "Running")
            while not self.ready(name):
                await asyncio.sleep(0.002)
            end = self.ends.popleft() if self.ends else "Succeeded"
            self._status(pod, end, played.container(terminated=_terminated(end)))
            self._say(name, uid, "Created", "Running=False", end)
        except ApiError:
            # The job is gone or being deleted: so is the script of it.
            return

    def _say(self, name: str, uid: str, *conditions: str) -> None:
        def change(job: Object) -> None:
            if job["metadata"]["uid"] != uid or job["metadata"].get("deletionTimestamp"):
                raise ApiError(404, "NotFound", "it is gone")
            job["status"] = {
                "conditions": [played.condition(words, played.now()) for words in conditions]
            }

        self._api.mutate(PYTORCHJOB, self._namespace, name, change, "status")

    def _status(self, pod: Object, phase: str, container: Object) -> None:
        def change(obj: Object) -> None:
            obj["status"] = {**obj["status"], "phase": phase, "containerStatuses": [container]}

        self._api.mutate(POD, self._namespace, pod["metadata"]["name"], change, "status")


def true_conditions(job: Object) -> set[str]:
    """The types of a job's conditions that are True."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return {str(c["type"]) for c in conditions if c["status"] == "True"}


def _terminated(end: str) -> Object:
    if end == "Succeeded":
        told: Object = {"version": 1, "status": "succeeded", "metrics": {"accuracy": 0.75}}
    else:
        error = {"rank": 0, "time": 1.0, "type": "ValueError", "message": "bad", "traceback": ""}
        told = {"version": 1, "status": "failed", "error": error}
    when = played.now()
    return played.end(int(end == "Failed"), json.dumps(told), started=when, finished=when)
