"""Acts as the operator, the kubelet and people, on an API server of the tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, cast

from harness.api_server import ThreadedServer
from harness.faults.actions import Action
from harness.faults.plan import Fault
from harness.held import unanswered
from harness.objects import played
from harness.objects.played import container, end

from kfp_pytorch.launcher.constants import (
    CLAIM,
    EVENT,
    POD,
    PYTORCHJOB,
    TENSORBOARD,
    WORKFLOW,
    Kind,
)
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.kubernetes.credentials import Credentials
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.local.apiserver.errors import ApiError as Gone
from kfp_pytorch.local.apiserver.store.api import DELETED, Api

NAMESPACE = "default"
JOBS = f"*/namespaces/{NAMESPACE}/pytorchjobs*"
PATIENT = RetryPolicy(unavailability_budget=30, first_contact=30, pause=0.05, max_pause=0.2)
# For tests of a server that does not answer: one asks again soon, one gives up soon.
HASTY = replace(PATIENT, connect=1.0, read=0.5)
IMPATIENT = replace(PATIENT, unavailability_budget=1.8)

Object = dict[str, Any]


def connected(server: ThreadedServer, policy: RetryPolicy = PATIENT) -> Kube:
    def load() -> Credentials:
        return Credentials(server.url, NAMESPACE, "a test", account="tester")

    return connect(policy=policy, load_credentials=load)


class Hands:
    """Plays the operator and the kubelet, step by step."""

    def __init__(self, server: ThreadedServer) -> None:
        self.server = server

    def job(self, name: str, within: float = 60.0) -> Object:
        """The job, once it is there."""
        return until(lambda: self.find(PYTORCHJOB, name), within)

    def find(self, kind: Kind, name: str) -> Object | None:
        return self.server.call(lambda: _copy(self.server.api.find(kind, NAMESPACE, name)))

    def jobs(self) -> list[Object]:
        return self.server.call(self.server.api.list, PYTORCHJOB, NAMESPACE)

    def set_conditions(self, name: str, *conditions: str, **status: Any) -> Object:
        """Writes conditions such as `Running` or `Running=False`, with reason and message."""
        self.job(name)
        written = [played.condition(c) for c in conditions]

        def change(obj: Object) -> None:
            obj["status"] = {**(obj.get("status") or {}), "conditions": written, **status}

        return self.server.call(
            self.server.api.mutate, PYTORCHJOB, NAMESPACE, name, change, "status"
        )

    def change_job(self, name: str, change: Callable[[Object], Any]) -> Object:
        def changed(obj: Object) -> None:
            change(obj)

        return self.server.call(self.server.api.mutate, PYTORCHJOB, NAMESPACE, name, changed)

    def suspend(self, name: str, whether: bool) -> None:
        """Puts a job into the queue, or lets it go, as Kueue does."""
        self.job(name)
        self.change_job(name, lambda job: job["spec"]["runPolicy"].update(suspend=whether))

    def set_status(self, name: str, status: Object) -> Object:
        """Writes a job's whole status."""
        self.job(name)
        return self.server.call(
            self.server.api.mutate,
            PYTORCHJOB,
            NAMESPACE,
            name,
            lambda obj: obj.update(status=status),
            "status",
        )

    def delete(self, kind: Kind, name: str, propagation: str = "Background") -> None:
        self.server.call(self.server.api.delete, kind, NAMESPACE, name, propagation)

    def pod(self, job: str, role: str = "master", index: int = 0, **status: Any) -> Object:
        """Makes a pod of a job, or changes the status of the one that is there."""
        return self.pods(job, role, {index: status})[0]

    def pods(self, job: str, role: str, statuses: Mapping[int, Object]) -> list[Object]:
        """The same for many pods, by their index, in one turn of the server's loop."""
        parent = self.find(PYTORCHJOB, job)
        if parent is None and not self.find(POD, f"{job}-{role}-{min(statuses)}"):
            parent = self.job(job)
        made = self.server.call(_change_pods, self.server.api, job, parent, role, statuses)
        return cast("list[Object]", made)

    def running(self, job: str, role: str = "master", index: int = 0, restarts: int = 0) -> Object:
        state = {"running": {"startedAt": played.STARTED}}
        return self.pod(
            job, role, index, phase="Running",
            containerStatuses=[container(restarts=restarts, **state)],
        )  # fmt: skip

    def waiting(
        self, job: str, reason: str, words: str = "", part: str = "containerStatuses", **more: Any
    ) -> Object:
        statuses = [container(waiting={"reason": reason, "message": words}, **more)]
        return self.pod(job, phase="Pending", **{part: statuses})

    def ended(
        self, job: str, code: int, text: str = "", role: str = "master", index: int = 0, **more: Any
    ) -> Object:
        phase = "Failed" if code else "Succeeded"
        statuses = [container(terminated=end(code, text), **more)]
        return self.pod(job, role, index, phase=phase, containerStatuses=statuses)

    def success(self, job: str, restarts: int = 0, **fields: Any) -> None:
        """Lets the master, which was restarted so often, and then the job succeed."""
        told = {"version": 1, "status": "succeeded", **fields}
        self.ended(job, 0, json.dumps(told), restarts=restarts)
        self.set_conditions(job, "Created", "Running=False", "Succeeded")

    def fault(self, action: Action, verb: str, path: str = JOBS, **how: Any) -> None:
        self.server.faults.add(Fault(action, verb, path, **how))

    def unanswered(
        self, verb: str = "create", path: str = JOBS, **how: Any
    ) -> AbstractContextManager[None]:
        """In this context such requests get no answer: limits do not run before the job is made."""
        return unanswered(self.server, verb, path, **how)

    def log(
        self, pod: Object, lines: list[str], number: int = 0, container: str = "pytorch"
    ) -> None:
        """Adds lines, each `TIME TEXT`, to the log of a container's run."""
        metadata = pod["metadata"]
        folder = f"{NAMESPACE}_{metadata['name']}_{metadata['uid']}"
        path = self.server.log_root / folder / container / f"{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for line in lines:
                stamp, _, text = line.partition(" ")
                file.write(f"{stamp} stdout F {text}\n")

    def event(
        self,
        about: str,
        reason: str,
        message: str,
        kind: str = "PyTorchJob",
        uid: str = "",
        when: str = played.STARTED,
    ) -> None:
        obj = {
            "metadata": {"name": f"{about}.{time.monotonic_ns():x}", "namespace": NAMESPACE},
            "involvedObject": {"kind": kind, "name": about, "namespace": NAMESPACE, "uid": uid},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": when,
        }
        self.server.call(self.server.api.create, EVENT, obj)

    @staticmethod
    def until(find: Callable[[], Any], within: float = 60.0) -> Any:
        return until(find, within)

    def reset(self) -> None:
        """Makes the server as good as new."""
        self.server.faults.clear()
        self.server.call(_empty, self.server.api)
        self.server.call(self.server.faults.requests.clear)

    def stranger(self) -> Object:
        """Makes a job that is not this step's."""
        containers = [{"name": "pytorch", "image": "a"}]
        spec = {
            "pytorchReplicaSpecs": {"Master": {"template": {"spec": {"containers": containers}}}}
        }
        obj = {"metadata": {"name": "stranger", "namespace": NAMESPACE}, "spec": spec}
        self.server.call(self.server.api.create, PYTORCHJOB, obj)
        return self.job("stranger")

    def count(self, verb: str, path: str = "") -> int:
        return sum(1 for r in self.server.requests if r.verb == verb and path in r.path)


def until(find: Callable[[], Any], within: float = 60.0) -> Any:
    """What `find` gives, once it gives something."""
    deadline = time.monotonic() + within
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return found


def _copy(obj: Any) -> Any:
    return None if obj is None else dict(obj)


def _change_pods(
    api: Api, job: str, parent: Object | None, role: str, statuses: Mapping[int, Object]
) -> list[Object]:
    made = []
    for index, status in statuses.items():
        name = f"{job}-{role}-{index}"
        if parent is not None and api.find(POD, NAMESPACE, name) is None:
            api.create(POD, played.pod(parent, role, index, played.small_spec()))

        def change(obj: Object, status: Object = status) -> None:
            obj["status"] = {**(obj.get("status") or {}), **status}

        made.append(api.mutate(POD, NAMESPACE, name, change, "status"))
    return made


def _empty(api: Api) -> None:
    for kind in (PYTORCHJOB, POD, EVENT, CLAIM, WORKFLOW, TENSORBOARD):
        for obj in api.list(kind, NAMESPACE):
            name = obj["metadata"]["name"]
            if obj["metadata"].get("finalizers"):
                api.mutate(
                    kind, NAMESPACE, name, lambda o: o["metadata"].pop("finalizers") and None
                )
            if api.find(kind, NAMESPACE, name):
                api.delete(kind, NAMESPACE, name, grace=0 if kind == POD else None)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    api.create(CLAIM, {"metadata": {"name": "kfp-pytorch", "namespace": NAMESPACE}, "spec": spec})


async def bury(api: Api) -> None:
    """Ends pods that are being deleted, as the kubelet does."""
    async for change, pod in api.watch(POD):
        if change != DELETED and pod["metadata"].get("deletionTimestamp"):
            try:
                api.delete(POD, NAMESPACE, pod["metadata"]["name"], grace=0)
            except Gone:
                continue
