"""A server that restarts answers as a Kubernetes API server does meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import groupby

import httpx
import pytest
from harness.api_server import ThreadedServer
from harness.faults.restart import Restart

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


def ask(server: ThreadedServer, path: str) -> tuple[int, str]:
    """The status and the body of an answer; 0 where there is none."""
    try:
        answer = httpx.get(f"{server.url}{path}", timeout=10)
    except httpx.TransportError as error:
        return 0, type(error).__name__
    return answer.status_code, answer.text


def asked(server: ThreadedServer, *paths: str) -> list[list[tuple[int, str]]]:
    """The answers to each path, asked for again and again until the server is ready."""
    found: list[list[tuple[int, str]]] = [[] for _ in paths]
    deadline = time.monotonic() + 60
    while not found[0] or found[0][-1][0] != 200:
        assert time.monotonic() < deadline, found
        for path, answers in zip(paths, found, strict=True):
            answers.append(ask(server, path))
        time.sleep(0.02)
    return found


def phases(answers: list[tuple[int, str]]) -> list[int]:
    return [code for code, _ in groupby(code for code, _ in answers)]


@pytest.fixture
def restarted(api_server: ThreadedServer) -> Callable[..., list[list[tuple[int, str]]]]:
    def restart(*paths: str, **how: float) -> list[list[tuple[int, str]]]:
        api_server.restart(Restart(**how))
        return asked(api_server, *paths)

    return restart


def test_a_restart_is_refused_then_forbidden_then_unavailable(restarted: Callable) -> None:
    ready, pods, jobs = restarted("/readyz", PODS, JOBS)
    assert phases(ready) == [0, 403, 500, 200]
    assert phases(pods) == [0, 403, 200, 429, 200]
    assert phases(jobs) == [0, 403, 503, 429, 200]
    said = {code: json.loads(body)["message"] for code, body in jobs if code in (429, 503)}
    assert said[503].startswith("the request has been made before all known HTTP paths")
    assert said[429] == "storage is (re)initializing"


def test_403_names_the_account_and_at_times_a_role(restarted: Callable) -> None:
    _, pods = restarted("/readyz", PODS, forbidden_s=1.0, no_paths_s=0.0, storage_s=0.0)
    said = {json.loads(body)["message"] for code, body in pods if code == 403}
    why = (
        'pods is forbidden: User "system:serviceaccount:kubeflow:pipeline-runner" cannot list '
        'resource "pods" in API group "" in the namespace "default"'
    )
    role = 'RBAC: clusterrole.rbac.authorization.k8s.io "pipeline-runner" not found'
    assert said <= {why, f"{why}: {role}"}
    assert said


def test_an_open_watch_goes_on_and_ends_later(api_server: ThreadedServer) -> None:
    restart = Restart(forbidden_s=0.1, no_paths_s=0.1, storage_s=0.1, streams_s=3.0)
    query = {"watch": "1"}
    with (
        httpx.Client(base_url=api_server.url, timeout=60) as client,
        client.stream("GET", CONFIG_MAPS, params=query) as watch,
    ):
        api_server.restart(restart)
        began = time.monotonic()
        while ask(api_server, "/readyz")[0] != 200:
            time.sleep(0.02)
        body = {"metadata": {"name": "later"}}
        assert httpx.post(f"{api_server.url}{CONFIG_MAPS}", json=body).status_code == 201
        names = [json.loads(line)["object"]["metadata"]["name"] for line in watch.iter_lines()]
    assert names == ["later"]
    assert time.monotonic() - began > 2.0
