"""A second kind of job, `batch/v1` Job, and a player of its controller: all that a kind needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import ThreadedServer, start_in_thread
from harness.hands import Hands, bury, connected
from harness.objects import played
from harness.threads import join_since

from kfp_pytorch.launcher.constants import EVENT, POD, Kind
from kfp_pytorch.launcher.inputs import storage
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.kind import JobInputs, JobKind
from kfp_pytorch.launcher.jobs.state import JobState, Phase, latest_transition, true_conditions
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each, name
from kfp_pytorch.local.apiserver.registry import Registry
from kfp_pytorch.local.apiserver.store.api import Api

JOB = Kind("batch", "v1", "Job", "jobs")
JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = "main"
BUCKET = storage.parse("s3://bucket")


@dataclass(frozen=True)
class BatchJobInputs(JobInputs):
    """The inputs of a component that runs a Job."""

    image: str
    name: str = "batch"
    namespace: str = ""
    num_nodes: int = 1
    nproc_per_node: str = "1"
    output_uri: Location = BUCKET
    resume_from: Location | None = None
    queue_timeout: int = 0
    start_timeout: int = 0
    timeout: int = 0
    active_deadline: int = 0
    cleanup: str = "on_failure"
    hyperparameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return 0

    def folder(self, job_name: str) -> Location:
        return self.output_uri.under(job_name)

    def spec(self) -> dict[str, Any]:
        return asdict(self)


def build(
    inputs: BatchJobInputs,
    *,
    job_name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owner: Object | None,
) -> Object:
    assert owner is None
    container = {"name": CONTAINER, "image": inputs.image}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name, "labels": {**labels}, "annotations": {**annotations}},
        "spec": {
            "completionMode": "Indexed",
            "completions": inputs.num_nodes,
            "parallelism": inputs.num_nodes,
            "backoffLimit": 0,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def read_state(job: Object) -> JobState:
    conditions = each(job, "status", "conditions")
    true = true_conditions(conditions, ("Failed", "Complete"))
    deleting = bool(dig(job, "metadata", "deletionTimestamp"))
    for word, phase in (("Failed", Phase.FAILED), ("Complete", Phase.SUCCEEDED)):
        if word in true:
            found = true[word]
            since = latest_transition([found])
            return JobState(phase, found["reason"], found.get("message", ""), since, deleting)
    # A Job has no condition that says that it runs: its numbers of pods do.
    active, ready = (dig(job, "status", field) or 0 for field in ("active", "ready"))
    phase = Phase.UNACKNOWLEDGED
    if dig(job, "spec", "suspend"):
        phase = Phase.QUEUED
    elif active:
        phase = Phase.RUNNING if ready == active else Phase.STARTING
    elif dig(job, "status", "startTime"):
        phase = Phase.STARTING
    return JobState(phase, deleting=deleting)


def replica(pod: Object) -> tuple[str, int]:
    return "pod", int(dig(pod, "metadata", "labels", INDEX) or 0)


def first_pod(_job: Object, pods: Sequence[Object]) -> str:
    # Its name has a random end.
    return next((name(pod) for pod in pods if replica(pod)[1] == 0), "")


BATCH_JOB = JobKind(
    resource=JOB,
    operator="Job controller",
    install_advice="Every cluster knows Jobs.",
    operator_pods="kubectl get pods -n kube-system",
    container=CONTAINER,
    parse_inputs=BatchJobInputs,
    longest_suffix=lambda inputs: f"-{inputs.num_nodes - 1}-abcde",
    build=build,
    read_state=read_state,
    expected_pods=lambda job: job["spec"]["completions"],
    pod_selector=lambda job_name: f"{JOB_NAME}={job_name}",
    pod_templates=lambda job: [job["spec"]["template"]],
    first_pod=first_pod,
    replica=replica,
    node_of=lambda _job, pod: replica(pod)[1],
    node_name=lambda job, node: f"{name(job)}-{node}",
    num_nodes=lambda job: dig(job, "spec", "completions") or 0,
    processes_per_node=lambda _job: 1,
    recreates=lambda _job, _code: False,
    restart_limit=lambda _job: 0,
)
_VERSION = {"name": "v1", "served": True, "subresources": {"status": {}}}
_DEFINITION = {
    "kind": "CustomResourceDefinition",
    "spec": {
        "group": "batch",
        "names": {"kind": "Job", "plural": "jobs"},
        "versions": [_VERSION],
    },
}


class Controller:
    """Plays the Job controller and the kubelet."""

    def __init__(self, server: ThreadedServer) -> None:
        self.server, self.hands = server, Hands(server)

    def job(self, job_name: str) -> Object:
        return self.hands.until(lambda: self.hands.find(JOB, job_name))

    def pod(self, job_name: str, index: int, phase: str, **state: Any) -> Object:
        """Makes a pod of a job, or changes its status."""
        job, api = self.job(job_name), self.server.api
        container = {"name": CONTAINER, "image": "a"}
        pod = played.pod(job, "pod", index, {"nodeName": "n", "containers": [container]})
        pod["metadata"]["name"] = f"{job_name}-{index}-x7k2p"
        pod["metadata"]["labels"] = {JOB_NAME: job_name, INDEX: str(index)}
        pod["metadata"]["ownerReferences"][0] |= {"apiVersion": "batch/v1", "kind": "Job"}
        if self.hands.find(POD, pod["metadata"]["name"]) is None:
            self.server.call(api.create, POD, pod)
        statuses = [played.container(CONTAINER, **state)] if state else []
        status = {"phase": phase, "containerStatuses": statuses}

        def change(obj: Object) -> None:
            obj["status"] = status

        where = (POD, "default", pod["metadata"]["name"])
        return self.server.call(api.mutate, *where, change, "status")

    def status(self, job_name: str, *conditions: tuple[str, str, str], **numbers: int) -> None:
        self.job(job_name)
        written = [
            {"type": word, "status": "True", "reason": reason, "message": message}
            for word, reason, message in conditions
        ]
        found = {"startTime": played.STARTED, "conditions": written, **numbers}

        def change(obj: Object) -> None:
            obj["status"] = found

        self.server.call(self.server.api.mutate, JOB, "default", job_name, change, "status")

    def running(self, job_name: str, nodes: int = 1) -> None:
        for index in range(nodes):
            self.pod(job_name, index, "Running", running={"startedAt": played.STARTED})
        self.status(job_name, active=nodes, ready=nodes)

    def success(self, job_name: str, message: str = "") -> None:
        self.pod(job_name, 0, "Succeeded", terminated=played.end(0, message))
        self.status(job_name, ("Complete", "CompletionsReached", ""))

    def event(self, job_name: str, reason: str, message: str) -> None:
        self.hands.event(job_name, reason, message, kind="Job")

    def events(self) -> list[Object]:
        return self.server.call(self.server.api.list, EVENT, "default")


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """An API server that knows Jobs, and hands that play their controller."""
    root = tmp_path / "server"
    root.mkdir()
    server = start_in_thread(root, api=Api(Registry([_DEFINITION])), bookmark_every_s=0.2)
    burying = server.run(bury(server.api))
    yield Controller(server)
    burying.cancel()
    server.stop()


@pytest.fixture
def step(
    controller: Controller, tmp_path: Path, start_run: Callable[..., Any], quick: Any
) -> Iterator[Callable[..., Any]]:
    """`step(inputs…)`: starts an attempt of a step that runs a Job, `changed` as a kind."""
    runs: list[Any] = []
    before = set(threading.enumerate())
    kube = connected(controller.server)

    def start(
        limits: Mapping[str, float] | None = None,
        changed: Mapping[str, Any] | None = None,
        **inputs: Any,
    ) -> Any:
        limited = replace(quick, **(limits or {}))
        kind = replace(BATCH_JOB, **(changed or {}))
        run = start_run(kube, tmp_path, limited, kind=kind, image="train:1", **inputs)
        runs.append(run)
        return run

    yield start
    for run in runs:
        if run.going and controller.hands.find(JOB, run.job):
            controller.hands.delete(JOB, run.job)
        run.wait()
    join_since(before)
