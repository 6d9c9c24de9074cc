"""What a person does with kubectl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import ThreadedServer, start_in_thread

from kfp_pytorch.launcher.constants import (
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    POD,
    PYTORCHJOB,
    SERVICE,
)
from kfp_pytorch.local.apiserver.registry import NAMESPACE

KUBECTL = shutil.which("kubectl")
LIMIT_S = 120

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl on the path")

Object = dict[str, Any]
Kubectl = Callable[..., str]

JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "j"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}}
        }
    },
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadedServer]:
    started = start_in_thread(tmp_path, token="a-secret-word")
    yield started
    started.stop()


@pytest.fixture
def environment(server: ThreadedServer, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(server.kubeconfig), "HOME": str(tmp_path)}


@pytest.fixture
def kubectl(environment: dict[str, str]) -> Kubectl:
    """`kubectl("get", "pods")`: what it prints; it must succeed unless `fails` is given."""

    def run(*arguments: str, stdin: Object | None = None, fails: bool = False) -> str:
        done = subprocess.run(
            [str(KUBECTL), *arguments],
            env=environment,
            input=json.dumps(stdin) if stdin else None,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert bool(done.returncode) is fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def make_pod(server: ThreadedServer, name: str = "p", **status: Any) -> Object:
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]}
    meta = {"name": name, "namespace": "default"}
    pod = server.call(server.api.create, POD, {"metadata": meta, "spec": spec})

    def change(obj: Object) -> None:
        obj["status"].update(status)

    return server.call(server.api.mutate, POD, "default", name, change, "status") if status else pod


def container(state: Object, **more: Any) -> list[Object]:
    own = {"name": "c", "ready": False, "restartCount": 0, "image": "x", "imageID": ""}
    return [{**own, "state": state, **more}]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


RUNNING: Object = {"running": {"startedAt": "2025-01-01T00:00:00Z"}}


def test_jobs_are_made_shown_changed_and_deleted(server: ThreadedServer, kubectl: Kubectl) -> None:
    assert "pytorchjob.kubeflow.org/j created" in kubectl("apply", "-f", "-", stdin=JOB)
    conditions = [{"type": kind, "status": "True"} for kind in ("Created", "Running")]
    server.call(
        server.api.mutate,
        PYTORCHJOB,
        "default",
        "j",
        lambda obj: {**obj, "status": {"conditions": conditions}},
        "status",
    )
    heading, row = rows(kubectl("get", "pytorchjobs"))
    assert heading == ["NAME", "STATE", "AGE"]
    assert row[:2] == ["j", "Running"]
    changed = {**JOB, "spec": {**JOB["spec"], "nprocPerNode": "2"}}
    assert "configured" in kubectl("apply", "-f", "-", stdin=changed)
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=changed)
    assert "Nproc Per Node:  2" in kubectl("describe", "pytorchjob", "j").replace(":   ", ":  ")
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", stdin=changed)
    assert "deleted" in kubectl("delete", "pytorchjob", "j")
    assert "not found" in kubectl("get", "pytorchjob", "j", fails=True)


def test_a_field_that_a_pod_does_not_have_is_refused(kubectl: Kubectl) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    pod["spec"] = {"containers": [{"name": "c", "image": "x", "comand": ["x"]}]}
    said = kubectl("create", "-f", "-", stdin=pod, fails=True)
    assert 'unknown field "spec.containers[0].comand"' in said


@pytest.mark.parametrize(
    ("status", "ready", "shown", "restarts"),
    [
        ({}, "0/1", "Pending", "0"),
        ({"containerStatuses": container(RUNNING, ready=True)}, "1/1", "Running", "0"),
        (
            {"containerStatuses": container({"waiting": {"reason": "ImagePullBackOff"}})},
            "0/1",
            "ImagePullBackOff",
            "0",
        ),
        (
            {
                "containerStatuses": container(
                    {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, restartCount=2
                )
            },
            "0/1",
            "OOMKilled",
            "2",
        ),
        ({"reason": "Evicted"}, "0/1", "Evicted", "0"),
    ],
)
def test_a_pod_shows_what_its_containers_do(
    server: ThreadedServer, kubectl: Kubectl, status: Object, ready: str, shown: str, restarts: str
) -> None:
    phase = "Running" if status else "Pending"
    make_pod(server, **({"phase": phase, **status} if status else {}))
    heading, row = rows(kubectl("get", "pods"))
    assert heading == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[:4] == ["p", ready, shown, restarts]


def test_describe_shows_a_pods_events(server: ThreadedServer, kubectl: Kubectl) -> None:
    pod = make_pod(server, phase="Running", containerStatuses=container(RUNNING))
    about = {"kind": "Pod", "name": "p", "namespace": "default", "uid": pod["metadata"]["uid"]}
    event = {
        "metadata": {"name": "p.1", "namespace": "default"},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        "firstTimestamp": "2025-01-01T00:00:00Z",
        "lastTimestamp": "2025-01-01T00:00:00Z",
        "count": 3,
    }
    server.call(server.api.create, EVENT, event)
    text = kubectl("describe", "pod", "p")
    assert "Insufficient nvidia.com/gpu" in text
    assert "Image:          x" in text
    assert "pod/p" in kubectl("get", "events")


def test_watching_prints_each_change_as_a_row(
    server: ThreadedServer, environment: dict[str, str]
) -> None:
    make_pod(server)
    command = [str(KUBECTL), "get", "pods", "-w", "--output-watch-events"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(lines).split()[:2] == ["EVENT", "NAME"]
        assert next(lines).split()[:2] == ["ADDED", "p"]
        change = container(RUNNING, ready=True)
        server.call(
            server.api.mutate,
            POD,
            "default",
            "p",
            lambda obj: obj["status"].update(phase="Running", containerStatuses=change),
            "status",
        )
        assert next(lines).split()[:4] == ["MODIFIED", "p", "1/1", "Running"]
        server.call(server.api.delete, POD, "default", "p", grace=0)
        assert next(lines).split()[:2] == ["DELETED", "p"]
    finally:
        process.kill()
        process.communicate()


def test_logs_are_followed_until_the_container_ends(
    server: ThreadedServer, environment: dict[str, str]
) -> None:
    pod = make_pod(server, phase="Running", containerStatuses=container(RUNNING))
    folder = server.log_root / f"default_p_{pod['metadata']['uid']}" / "c"
    folder.mkdir(parents=True)
    log = folder / "0.log"
    log.write_text("2025-01-01T00:00:00Z stdout F first\n")
    process = subprocess.Popen(
        [str(KUBECTL), "logs", "-f", "p"], env=environment, stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        with log.open("a") as file:
            file.write("2025-01-01T00:00:01Z stdout F last\n")
        ended = container({"terminated": {"exitCode": 0}})
        server.call(
            server.api.mutate,
            POD,
            "default",
            "p",
            lambda obj: obj["status"].update(phase="Succeeded", containerStatuses=ended),
            "status",
        )
        assert process.stdout.read() == "last\n"
        assert process.wait() == 0
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def test_other_kinds_have_the_columns_that_people_know(
    server: ThreadedServer, kubectl: Kubectl
) -> None:
    meta = {"name": "m", "namespace": "default"}
    isvc = {"metadata": meta, "spec": {"predictor": {}}}
    server.call(server.api.create, INFERENCE_SERVICE, isvc)
    status = {"url": "http://m", "conditions": [{"type": "Ready", "status": "True"}]}
    server.call(
        server.api.mutate,
        INFERENCE_SERVICE,
        "default",
        "m",
        lambda obj: {**obj, "status": status},
        "status",
    )
    heading, row = rows(kubectl("get", "isvc"))
    assert heading[:3] == ["NAME", "URL", "READY"]
    assert row[:3] == ["m", "http://m", "True"]
    server.call(server.api.create, CONFIG_MAP, {"metadata": meta, "data": {"a": "b"}})
    assert rows(kubectl("get", "cm"))[1][:2] == ["m", "1"]
    ports = {"ports": [{"port": 80}]}
    server.call(server.api.create, SERVICE, {"metadata": meta, "spec": ports})
    assert "80/TCP" in kubectl("get", "svc")
    template = {"metadata": {"labels": {"a": "b"}}}
    template["spec"] = {"containers": [{"name": "c", "image": "x"}]}  # type: ignore[dict-item]
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    server.call(server.api.create, DEPLOYMENT, {"metadata": meta, "spec": spec})
    assert rows(kubectl("get", "deploy"))[1][:4] == ["m", "0/1", "0", "0"]
    assert "deployment.apps/m" in kubectl("get", "all")
    names = [row[0] for row in rows(kubectl("get", "ns", "--sort-by", ".metadata.name"))[1:]]
    assert names == ["default", "kube-public", "kube-system"]


def test_a_pod_is_deleted_when_its_kubelet_is_done(
    server: ThreadedServer, kubectl: Kubectl, environment: dict[str, str]
) -> None:
    make_pod(server)
    process = subprocess.Popen(
        [str(KUBECTL), "delete", "pod", "p"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert "deleted" in process.stdout.readline()
        assert rows(kubectl("get", "pods"))[1][2] == "Terminating"
        assert process.poll() is None
        server.call(server.api.delete, POD, "default", "p", grace=0)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()


def test_kubectl_deletes_namespaces_waits_labels_and_explains(
    server: ThreadedServer, kubectl: Kubectl
) -> None:
    server.call(server.api.create, NAMESPACE, {"metadata": {"name": "n"}})
    kubectl("delete", "ns", "n")
    make_pod(server, phase="Running")
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/p")
    kubectl("label", "pod", "p", "a=b")
    assert kubectl("get", "pods", "-l", "a=b", "-o", "name") == "pod/p\n"
    assert "pytorchReplicaSpecs" in kubectl("explain", "pytorchjob.spec")
