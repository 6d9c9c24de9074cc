"""Servers that know TrainJobs, and hands that play the Trainer, JobSet, Job and the kubelet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import ThreadedServer, start_in_thread
from harness.hands import Hands, bury, connected
from harness.objects import played, trainer
from harness.threads import join_since

from kfp_pytorch.launcher.constants import CLUSTER_TRAINING_RUNTIME, POD, TRAINJOB
from kfp_pytorch.launcher.jobs.trainjob.forms import CURRENT
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB
from kfp_pytorch.launcher.jobs.trainjob.state import INDEX_LABEL, JOB_LABEL, JOBSET_LABEL
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.steps.train_job import fitted_to_cluster
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import Api

Start = Callable[..., ThreadedServer]
RUNTIME: Object = {
    "metadata": {"name": "torch-distributed"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "node",
                        "template": {
                            "spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}
                        },
                    }
                ]
            }
        },
    },
}


class Trainer:
    """Plays what acts on TrainJobs of one server."""

    def __init__(self, server: ThreadedServer) -> None:
        self.server, self.hands = server, Hands(server)

    def find(self, job: str) -> Object | None:
        return self.hands.find(TRAINJOB, job)

    def job(self, job: str) -> Object:
        return self.hands.until(lambda: self.find(job))

    def status(self, job: str, *conditions: tuple[str, str, str], **numbers: int) -> None:
        """Writes conditions such as `("Failed", "FailedJobs", "…")`, or of `Type=False`."""
        self.job(job)
        written = []
        for kind, reason, message in conditions:
            word, _, value = kind.partition("=")
            changed = {"lastTransitionTime": played.now(), "reason": reason, "message": message}
            written.append({"type": word, "status": value or "True", **changed})
        counts = dict.fromkeys(("active", "ready", "succeeded", "failed", "suspended"), 0)
        jobs = [{"name": "node", **counts, **numbers}] if numbers else []
        status = {"conditions": written} if written else {}
        self._mutate(job, lambda obj: obj.update(status=status | {"jobsStatus": jobs}), "status")

    def suspend(self, job: str, whether: bool) -> None:
        self.job(job)
        self._mutate(job, lambda obj: obj["spec"].update(suspend=whether))

    def _mutate(self, job: str, change: Callable[[Object], None], *part: str) -> None:
        self.server.call(self.server.api.mutate, TRAINJOB, "default", job, change, *part)

    def pod(
        self, job: str, index: int = 0, phase: str = "Running", end: str = "aaaaa", **state: Any
    ) -> Object:
        """Makes a pod of a job, whose name ends so, or changes its status."""
        name = f"{job}-node-0-{index}-{end}"
        if self.hands.find(POD, name) is None:
            self.job(job)
            labels = {JOBSET_LABEL: job, JOB_LABEL: "node", INDEX_LABEL: str(index)}
            spec = {"nodeName": "n", "containers": [{"name": "node", "image": "a"}]}
            made = {"metadata": {"name": name, "namespace": "default", "labels": labels}}
            self.server.call(self.server.api.create, POD, {**made, "spec": spec})
        running = {"running": {"startedAt": played.STARTED}}
        statuses = [played.container("node", **(state or running))]

        def change(obj: Object) -> None:
            obj["status"] = {"phase": phase, "containerStatuses": statuses}

        where = (POD, "default", name)
        return self.server.call(self.server.api.mutate, *where, change, "status")

    def running(self, job: str, nodes: int = 1) -> None:
        for index in range(nodes):
            self.pod(job, index)
        self.status(job, active=1, ready=1)

    def succeed(self, job: str, message: str, end: str = "aaaaa") -> None:
        self.pod(job, 0, "Succeeded", end, terminated=played.end(0, message))
        self.status(job, active=0, ready=1)
        self.status(
            job, ("Complete", "AllJobsCompleted", "jobset completed successfully"), succeeded=1
        )

    def fail(self, job: str, reason: str = "FailedJobs", message: str = "jobset failed") -> None:
        self.status(job, ("Failed", reason, message), failed=1)

    def event(self, job: str, reason: str, message: str, kind: str = "TrainJob") -> None:
        self.hands.event(job, reason, message, kind=kind)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Start]:
    """`start_server(field)`: a server of a Trainer that changes pods by this field."""
    started = []

    def start(field: str = CURRENT.field) -> ThreadedServer:
        root = tmp_path / "server"
        root.mkdir()
        if not trainer.FILE.exists() and field != CURRENT.field:
            pytest.skip("no CustomResourceDefinitions")
        # The server's own short definition is of the current form.
        definitions = [trainer.definition(field)] if trainer.FILE.exists() else []
        api = Api(Registry(definitions))
        server = start_in_thread(root, api=api, bookmark_every_s=0.2)
        server.call(api.create, CLUSTER_TRAINING_RUNTIME, RUNTIME)
        started.append((server, server.run(bury(api))))
        return server

    yield start
    for server, burying in started:
        burying.cancel()
        server.stop()


@pytest.fixture
def start_trainer(start_server: Start) -> Callable[..., Trainer]:
    """`start_trainer(field)`: the same, with hands that play it."""
    return lambda *field: Trainer(start_server(*field))


@pytest.fixture
def trains(start_trainer: Callable[..., Trainer]) -> Trainer:
    """A Trainer 2.3."""
    return start_trainer()


@pytest.fixture
def start_step(
    tmp_path: Path, start_run: Callable[..., Any], quick: Any
) -> Iterator[Callable[..., Any]]:
    """`start_step(trains, inputs…)`: starts an attempt of a step that runs a TrainJob."""
    runs: list[tuple[Trainer, Any]] = []
    before: set[threading.Thread] = set()

    def start(on: Trainer, limits: Mapping[str, float] | None = None, **inputs: Any) -> Any:
        # Not when the fixture is made: a server may be started later.
        before.update(() if runs else threading.enumerate())
        given = {"output_uri": "s3://bucket", **inputs}
        limited = replace(quick, **(limits or {}))
        kube = connected(on.server)
        run = start_run(kube, tmp_path, limited, kind=TRAIN_JOB, prepare=fitted_to_cluster, **given)
        runs.append((on, run))
        return run

    yield start
    for on, run in runs:
        if run.going and on.find(run.job):
            on.hands.delete(TRAINJOB, run.job)
        run.wait()
    join_since(before)


@pytest.fixture
def step(trains: Trainer, start_step: Callable[..., Any]) -> Callable[..., Any]:
    """`step(inputs…)`: starts an attempt on the server of Trainer 2.3."""
    return lambda **inputs: start_step(trains, **inputs)
