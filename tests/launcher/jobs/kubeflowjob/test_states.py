"""Scripted statuses of each kind, through a real API server, and what the step makes of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.faults.actions import Answer
from harness.hands import Hands
from harness.objects import played
from harness.threads import join_since

from kfp_pytorch.launcher.constants import POD, Kind
from kfp_pytorch.launcher.errors import JobFailed, StepError
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS
from kfp_pytorch.launcher.jobs.kubeflowjob.kinds import KUBEFLOW_KINDS
from kfp_pytorch.launcher.jobs.state import Phase

RESULT = json.dumps({"version": 1, "status": "succeeded", "metrics": {"accuracy": 0.5}})
EVERY_KIND = pytest.mark.parametrize("name", FRAMEWORKS)


class Operator:
    """Plays the operator and the kubelet for jobs of a kind."""

    def __init__(self, hands: Hands, name: str) -> None:
        self.hands, self.kind, self.framework = hands, KUBEFLOW_KINDS[name], FRAMEWORKS[name]

    @property
    def resource(self) -> Kind:
        return self.kind.resource

    def job(self, name: str) -> Any:
        return self.hands.until(lambda: self.hands.find(self.resource, name))

    def say(self, name: str, *conditions: str, **status: Any) -> None:
        self.job(name)
        written = [played.condition(each) for each in conditions]

        def change(obj: Any) -> None:
            obj["status"] = {"conditions": written, **status}

        api = self.hands.server.api
        self.hands.server.call(api.mutate, self.resource, "default", name, change, "status")

    def pods(self, name: str, phase: str, **state: Any) -> None:
        """Makes all pods of a job, or changes their status."""
        job, api, call = self.job(name), self.hands.server.api, self.hands.server.call
        for node in range(self.kind.num_nodes(job)):
            pod_name = self.kind.node_name(job, node)
            role, _, index = pod_name.removeprefix(f"{name}-").partition("-")
            pod = played.pod(job, role, int(index or 0), self._spec())
            pod["metadata"]["name"] = pod_name
            pod["metadata"]["ownerReferences"][0]["kind"] = self.resource.kind
            if call(api.find, POD, "default", pod_name) is None:
                call(api.create, POD, pod)
            status = [played.container(self.framework.container, **state)]

            def change(obj: Any, status: Any = status) -> None:
                obj["status"] = {"phase": phase, "containerStatuses": status}

            call(api.mutate, POD, "default", pod_name, change, "status")

    def _spec(self) -> Any:
        containers = [{"name": self.framework.container, "image": "train:1"}]
        return {"nodeName": "node-1", "containers": containers}

    def running(self, name: str) -> None:
        self.pods(name, "Running", running={"startedAt": played.STARTED})
        self.say(name, "Created", "Running")


@pytest.fixture
def attempt(
    hands: Hands, kube: Any, tmp_path: Path, start_run: Any, quick: Any
) -> Iterator[Callable[..., Any]]:
    """`attempt(operator, inputs…)`: starts an attempt of a step of the operator's kind."""
    runs: list[Any] = []
    before = set(threading.enumerate())

    def start(operator: Operator, **inputs: Any) -> Any:
        limits = replace(quick, **inputs.pop("limits", {}))
        of_kind = partial(operator.kind.parse_inputs, kind=operator.resource.kind)
        kind = replace(operator.kind, parse_inputs=of_kind)
        runs.append(start_run(kube, tmp_path, limits, kind=kind, **{"num_nodes": 2} | inputs))
        return runs[-1]

    yield start
    for run in runs:
        if hands.find(run.kind.resource, run.job):
            hands.delete(run.kind.resource, run.job)
        run.wait()
    join_since(before)


@EVERY_KIND
def test_a_job_that_succeeds_gives_its_first_pod_s_result(
    name: str, hands: Hands, attempt: Any
) -> None:
    operator = Operator(hands, name)
    run = attempt(operator)
    operator.running(run.job)
    operator.pods(run.job, "Succeeded", terminated=played.end(0, RESULT))
    operator.say(run.job, "Created", "Running=False", "Succeeded")
    assert run.succeeded().folder.endswith(run.job)
    assert run.outputs.metrics.metadata == {"accuracy": 0.5}


@EVERY_KIND
def test_a_job_that_fails_fails_the_step_whatever_else_is_true(
    name: str, hands: Hands, attempt: Any
) -> None:
    operator = Operator(hands, name)
    run = attempt(operator)
    operator.running(run.job)
    operator.pods(run.job, "Failed", terminated=played.end(1, "it broke"))
    operator.say(run.job, "Created", "Running", "Succeeded", "Failed: 1 replica failed")
    message = run.failed(JobFailed)
    first = operator.kind.first_pod({"metadata": {"name": run.job}, **_spec_of(name)}, [])
    assert first in message
    assert "it broke" in message
    hands.until(lambda: hands.find(operator.resource, run.job) is None)


@EVERY_KIND
def test_a_restart_is_waited_for(name: str, hands: Hands, attempt: Any, told: Any) -> None:
    operator = Operator(hands, name)
    run = attempt(operator)
    operator.running(run.job)
    operator.say(run.job, "Created", "Restarting")
    hands.until(lambda: any(line.startswith("restarting") for line in told))
    operator.running(run.job)
    operator.pods(run.job, "Succeeded", terminated=played.end(0, RESULT))
    operator.say(run.job, "Created", "Running=False", "Succeeded")
    run.succeeded()


@EVERY_KIND
def test_a_suspended_job_waits_in_its_queue(
    name: str, hands: Hands, attempt: Any, told: Any
) -> None:
    operator = Operator(hands, name)
    run = attempt(operator, limits={"start": 1.0})
    operator.job(run.job)

    def suspend(job: Any, whether: bool) -> None:
        job["spec"]["runPolicy"]["suspend"] = whether

    api, call = hands.server.api, hands.server.call
    where = (operator.resource, "default", run.job)
    call(api.mutate, *where, lambda job: suspend(job, True))
    operator.say(run.job, "Created", "Suspended")
    hands.until(lambda: any(line.startswith("queued") for line in told))
    call(api.mutate, *where, lambda job: suspend(job, False))
    operator.say(run.job, "Created", "Suspended=False")
    operator.running(run.job)
    operator.pods(run.job, "Succeeded", terminated=played.end(0, RESULT))
    operator.say(run.job, "Created", "Suspended=False", "Succeeded")
    run.succeeded()


@EVERY_KIND
def test_a_job_that_a_person_deletes_fails_the_step(name: str, hands: Hands, attempt: Any) -> None:
    operator = Operator(hands, name)
    run = attempt(operator)
    operator.running(run.job)
    hands.delete(operator.resource, run.job)
    assert "deleted" in run.failed(StepError)


@EVERY_KIND
def test_a_kind_that_the_cluster_does_not_know_is_told_with_what_to_install(
    name: str, hands: Hands, attempt: Any
) -> None:
    operator = Operator(hands, name)
    hands.fault(Answer(404), "create", f"*/{operator.resource.plural}*", times=None)
    message = attempt(operator).failed(StepError)
    assert f"Training Operator v1, which runs {name}s" in message


@EVERY_KIND
def test_the_phase_of_each_condition(name: str) -> None:
    kind = KUBEFLOW_KINDS[name]

    def phase(*conditions: str, suspend: bool = False) -> Phase:
        status = {"conditions": [played.condition(each) for each in conditions]}
        spec = {"runPolicy": {"suspend": suspend}}
        return kind.read_state({"spec": spec, "status": status}).phase

    assert phase() is Phase.UNACKNOWLEDGED
    assert phase(suspend=True) is Phase.QUEUED
    assert phase("Created") is Phase.STARTING
    assert phase("Created", "Running") is Phase.RUNNING
    assert phase("Created", "Running", "Restarting") is Phase.RESTARTING
    assert phase("Running", "Suspended", suspend=True) is Phase.QUEUED
    assert phase("Succeeded", "Running=False") is Phase.SUCCEEDED
    assert phase("Succeeded", "Failed", "Running") is Phase.FAILED


def test_only_a_restart_policy_by_exit_code_makes_pods_anew() -> None:
    kind = KUBEFLOW_KINDS["TFJob"]
    replicas = {"Worker": {"restartPolicy": "ExitCode", "replicas": 1}}
    job = {"spec": {"tfReplicaSpecs": replicas, "runPolicy": {"backoffLimit": 2}}}
    assert (kind.recreates(job, 137), kind.recreates(job, 1)) == (True, False)
    assert kind.restart_limit(job) == 2
    labels = {"training.kubeflow.org/replica-type": "worker"}
    for code, final in ((1, True), (143, False)):
        state = [played.container("tensorflow", terminated=played.end(code))]
        pod = {"metadata": {"labels": labels}, "status": {"containerStatuses": state}}
        assert kind.is_final(job, pod) is final


def test_an_mpi_launcher_s_log_and_message_are_the_job_s() -> None:
    kind = KUBEFLOW_KINDS["MPIJob"]
    replicas = {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}
    job = {"metadata": {"name": "j"}, "spec": {"mpiReplicaSpecs": replicas}}
    assert kind.first_pod(job, []) == "j-launcher"
    pods = [
        {"metadata": {"name": f"j-{end}", "labels": {f"training.kubeflow.org/{key}": value}}}
        for end, key, value in (
            ("worker-0", "replica-type", "worker"),
            ("launcher", "replica-type", "launcher"),
        )
    ]
    in_order = [each["metadata"]["name"] for each in kind.in_order(pods)]
    assert in_order == ["j-launcher", "j-worker-0"]
    assert [kind.node_of(job, pod) for pod in pods] == [1, 0]


def _spec_of(name: str) -> Any:
    framework = FRAMEWORKS[name]
    roles = {role: {"replicas": count} for role, count in framework.replicas(2).items()}
    return {"spec": {framework.roles.field: roles}}
