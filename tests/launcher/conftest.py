"""A real API server in a thread, and hands to play the operator and the kubelet with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import (
    CLAIM,
    EVENT,
    POD,
    PYTORCHJOB,
    TENSORBOARD,
    WORKFLOW,
    Kind,
)
from kfp_pytorch.launcher.credentials import Credentials
from kfp_pytorch.launcher.identity import job_name
from kfp_pytorch.launcher.inputs import parse_inputs
from kfp_pytorch.launcher.kube import Kube, connect
from kfp_pytorch.launcher.limits import Limits
from kfp_pytorch.launcher.pytorchjob import longest_suffix
from kfp_pytorch.launcher.steps.pytorch_job import Artifacts, train
from kfp_pytorch.launcher.stop import Stopper
from kfp_pytorch.launcher.transport import Patience
from kfp_pytorch.local.apiserver.core import DELETED, Api
from kfp_pytorch.local.apiserver.errors import ApiError as Gone
from kfp_pytorch.local.apiserver.faultactions import Action
from kfp_pytorch.local.apiserver.faults import Fault
from kfp_pytorch.local.apiserver.serve import ThreadedServer, start_in_thread

NAMESPACE = "default"
JOBS = f"*/namespaces/{NAMESPACE}/pytorchjobs*"
PODS = f"*/namespaces/{NAMESPACE}/pods"
MODEL_URI = "minio://mlpipeline/v2/artifacts/train/run-1/pytorch-job/abc/model"
# Everything of a wait, scaled down so that a test sees its end.
QUICK = Limits(
    acknowledge=5.0,
    kind_absent=0.5,
    blind=1.5,
    poll=0.15,
    silence=0.4,
    watch_life=60.0,
    slow_beat=0.5,
    log_silence=2.0,
    quick_beat=0.2,
    remind=0.4,
    deletion=3.0,
    pull_grace=0.5,
    config_grace=0.3,
    gather=2.0,
)
IMPATIENT = Patience(
    blind=1.8, first_contact=0.5, pause=0.05, longest_pause=0.2, connect=1.0, read=0.5, logins=2
)

Object = dict[str, Any]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    started = start_in_thread(tmp_path_factory.mktemp("server"), bookmark_every_s=0.2)
    burying = started.run(bury(started.api))
    yield started
    burying.cancel()
    started.stop()


@pytest.fixture
def server(shared_server: ThreadedServer) -> ThreadedServer:
    """A server as good as new: with one claim, and nothing going wrong."""
    shared_server.set_clock(0)
    Hands(shared_server).reset()
    return shared_server


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


def connected(server: ThreadedServer, patience: Patience = IMPATIENT) -> Kube:
    def load() -> Credentials:
        return Credentials(server.url, NAMESPACE, "a test", account="tester")

    return connect(patience=patience, load_credentials=load)


@pytest.fixture
def kube(server: ThreadedServer) -> Kube:
    return connected(server)


@dataclass
class Output:
    """An output artifact, as KFP hands it to a step."""

    path: str
    uri: str
    metadata: dict[str, Any]


class Run:
    """One try of the step, in a thread of its own."""

    def __init__(self, kube: Kube, folder: Path, limits: Limits, **inputs: Any) -> None:
        self.inputs = parse_inputs(**{"image": "train:1", "start_timeout": 0} | inputs)
        names = ("model", "metrics", "curves", "report")
        uris = {name: MODEL_URI.replace("/model", f"/{name}") for name in names}
        self.outputs = Artifacts(
            **{n: Output(str(folder / n), uris[n], {}) for n in names}  # type: ignore[arg-type]
        )
        self.left: list[int] = []
        self.stopper = Stopper(leave=self.left.append, grace=2.0)
        self.uri = ""
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self._kube, self._limits = kube, limits
        self.job = job_name(self.inputs.name, MODEL_URI, longest_suffix(self.inputs))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.uri = train(self._kube, self.inputs, self.outputs, self._limits, self.stopper)
        except BaseException as error:
            self.error = error
        self.ended_at = time.monotonic()

    @property
    def going(self) -> bool:
        return self._thread.is_alive()

    def wait(self, within: float = 10.0) -> Run:
        self._thread.join(within)
        assert not self.going, "the step does not end"
        return self

    def succeeded(self, within: float = 10.0) -> str:
        self.wait(within)
        if self.error is not None:
            raise self.error
        return self.uri

    def failed(self, kind: type[BaseException], within: float = 10.0) -> str:
        self.wait(within)
        assert isinstance(self.error, kind), f"{self.error!r} and {self.uri!r}"
        return str(self.error)


class Hands:
    """Plays the operator and the kubelet, step by step."""

    def __init__(self, server: ThreadedServer) -> None:
        self.server = server

    def job(self, name: str, within: float = 5.0) -> Object:
        """The job, once it is there."""
        return until(lambda: self.find(PYTORCHJOB, name), within)

    def find(self, kind: Kind, name: str) -> Object | None:
        return self.server.call(lambda: _copy(self.server.api.find(kind, NAMESPACE, name)))

    def jobs(self) -> list[Object]:
        return self.server.call(self.server.api.list, PYTORCHJOB, NAMESPACE)

    def set_conditions(self, name: str, *conditions: str, **status: Any) -> Object:
        """Writes conditions such as `Running` or `Running=False`, with reason and message."""
        self.job(name)
        written = [_condition(c) for c in conditions]

        def change(obj: Object) -> None:
            obj["status"] = {**(obj.get("status") or {}), "conditions": written, **status}

        return self.server.call(
            self.server.api.mutate, PYTORCHJOB, NAMESPACE, name, change, "status"
        )

    def change_job(self, name: str, change: Callable[[Object], Any]) -> Object:
        def changed(obj: Object) -> None:
            change(obj)

        return self.server.call(self.server.api.mutate, PYTORCHJOB, NAMESPACE, name, changed)

    def delete(self, kind: Kind, name: str, propagation: str = "Background") -> None:
        self.server.call(self.server.api.delete, kind, NAMESPACE, name, propagation)

    def pod(self, job: str, role: str = "master", index: int = 0, **status: Any) -> Object:
        """Makes a pod of a job, or changes the status of the one that is there."""
        name = f"{job}-{role}-{index}"
        if self.find(POD, name) is None:
            self.server.call(self.server.api.create, POD, _pod(self.job(job), role, index))

        def change(obj: Object) -> None:
            obj["status"] = {**(obj.get("status") or {}), **status}

        return self.server.call(self.server.api.mutate, POD, NAMESPACE, name, change, "status")

    def running(self, job: str, role: str = "master", index: int = 0, restarts: int = 0) -> Object:
        state = {"running": {"startedAt": "2025-11-27T12:00:00Z"}}
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

    def success(self, job: str, **fields: Any) -> None:
        """Lets the master and then the job succeed."""
        self.ended(job, 0, json.dumps({"version": 1, "status": "succeeded", **fields}))
        self.set_conditions(job, "Created", "Running=False", "Succeeded")

    def fault(self, action: Action, verb: str, path: str = JOBS, **how: Any) -> None:
        self.server.faults.add(Fault(action, verb, path, **how))

    def log(self, pod: Object, lines: list[str], number: int = 0) -> None:
        """Adds lines, each `TIME TEXT`, to the log of a container's run."""
        metadata = pod["metadata"]
        folder = f"{NAMESPACE}_{metadata['name']}_{metadata['uid']}"
        path = self.server.log_root / folder / "pytorch" / f"{number}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            for line in lines:
                stamp, _, text = line.partition(" ")
                file.write(f"{stamp} stdout F {text}\n")

    def event(self, about: str, reason: str, message: str) -> None:
        obj = {
            "metadata": {"name": f"{about}.{time.monotonic_ns():x}", "namespace": NAMESPACE},
            "involvedObject": {"name": about, "namespace": NAMESPACE},
            "reason": reason,
            "message": message,
            "lastTimestamp": "2025-11-27T12:00:00Z",
        }
        self.server.call(self.server.api.create, EVENT, obj)

    @staticmethod
    def until(find: Callable[[], Any], within: float = 5.0) -> Any:
        return until(find, within)

    def reset(self) -> None:
        """Makes the server as good as new."""
        self.server.faults.clear()
        self.server.call(_empty, self.server.api)
        self.server.call(self.server.faults.requests.clear)

    def stranger(self) -> Object:
        """Makes a job that is nobody's here."""
        containers = [{"name": "pytorch", "image": "a"}]
        spec = {
            "pytorchReplicaSpecs": {"Master": {"template": {"spec": {"containers": containers}}}}
        }
        obj = {"metadata": {"name": "stranger", "namespace": NAMESPACE}, "spec": spec}
        self.server.call(self.server.api.create, PYTORCHJOB, obj)
        return self.job("stranger")

    def count(self, verb: str, path: str = "") -> int:
        return sum(1 for r in self.server.requests if r.verb == verb and path in r.path)


@pytest.fixture
def hands(server: ThreadedServer) -> Hands:
    return Hands(server)


@pytest.fixture
def step(kube: Kube, hands: Hands, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """`step(limits…, inputs…)`: starts a try of the step."""
    runs: list[Run] = []

    def start(limits: dict[str, float] | None = None, on: Kube | None = None, **inputs: Any) -> Run:
        run = Run(on or kube, tmp_path, replace(QUICK, **(limits or {})), **inputs)
        runs.append(run)
        return run

    yield start
    hands.server.faults.clear()
    for run in runs:
        if run.going and hands.find(PYTORCHJOB, run.job):
            hands.delete(PYTORCHJOB, run.job)
        run.wait(10.0)


def until(find: Callable[[], Any], within: float = 5.0) -> Any:
    """What `find` gives, once it gives something."""
    deadline = time.monotonic() + within
    while not (found := find()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
    return found


def end(code: int, text: str = "", reason: str = "") -> Object:
    return {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "message": text,
        "startedAt": "2025-11-27T12:00:00Z",
        "finishedAt": "2025-11-27T12:01:00Z",
    }


def container(name: str = "pytorch", restarts: int = 0, **state: Any) -> Object:
    """The status of a container, such as `container(running={})`."""
    last = state.pop("lastState", None)
    found: Object = {
        "name": name,
        "image": "train:1",
        "imageID": "",
        "ready": "running" in state,
        "restartCount": restarts,
        "state": state,
    }
    return found | ({"lastState": last} if last else {})


def _condition(text: str) -> Object:
    words, _, message = text.partition(":")
    kind, _, value = words.partition("=")
    return {
        "type": kind,
        "status": value or "True",
        "reason": f"PyTorchJob{kind}",
        "message": message.strip(),
        "lastTransitionTime": "2025-11-27T12:00:00Z",
    }


def _pod(job: Object, role: str, index: int) -> Object:
    name = job["metadata"]["name"]
    return {
        "metadata": {
            "name": f"{name}-{role}-{index}",
            "namespace": NAMESPACE,
            "labels": {
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": str(index),
            },
            "ownerReferences": [
                {
                    "apiVersion": PYTORCHJOB.api_version,
                    "kind": PYTORCHJOB.kind,
                    "name": name,
                    "uid": job["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "pytorch", "image": "train:1"}]},
    }


def _copy(obj: Any) -> Any:
    return None if obj is None else dict(obj)
