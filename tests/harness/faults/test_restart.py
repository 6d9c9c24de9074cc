"""A server that restarts answers as a Kubernetes API server does meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import pytest
from harness.api_server import ThreadedServer
from harness.faults.restart import Restart
from harness.held import Clock

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


@pytest.fixture
def phases(api_server: ThreadedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The phases of a restart, one after the other; the server's clock is put forward."""
    clock = Clock()
    for module in ("plan", "restart"):
        monkeypatch.setattr(f"harness.faults.{module}.time", clock)

    def each() -> Iterator[str]:
        api_server.restart(Restart(0.1, forbidden_s=1000, no_paths_s=1000, storage_s=1000))
        deadline = time.monotonic() + 60
        while ask(api_server, "/readyz")[0] == 0:
            assert time.monotonic() < deadline
        for clock.ahead, name in enumerate(("forbidden", "no paths", "storage", "ready")):
            clock.ahead *= 1000
            yield name

    return each()


def test_connections_are_refused_first(api_server: ThreadedServer) -> None:
    api_server.restart(Restart(refused_s=60))
    assert ask(api_server, "/readyz") == (0, "ConnectError")


def test_a_restart_is_forbidden_then_unavailable_then_not_ready(
    api_server: ThreadedServer, phases: Iterator[str]
) -> None:
    found = {
        phase: tuple(ask(api_server, path)[0] for path in ("/readyz", PODS, JOBS))
        for phase in phases
    }
    assert found == {
        "forbidden": (403, 403, 403),
        "no paths": (500, 200, 503),
        "storage": (500, 429, 429),
        "ready": (200, 200, 200),
    }


def test_each_refusal_has_the_words_of_kubernetes(
    api_server: ThreadedServer, phases: Iterator[str]
) -> None:
    said = {
        phase: [json.loads(ask(api_server, path)[1]).get("message") for path in (PODS, JOBS)]
        for phase in phases
    }
    why = (
        'pods is forbidden: User "system:serviceaccount:kubeflow:pipeline-runner" cannot list '
        'resource "pods" in API group "" in the namespace "default"'
    )
    role = ': RBAC: clusterrole.rbac.authorization.k8s.io "pipeline-runner" not found'
    assert said["forbidden"][0].removesuffix(role) == why
    assert any(message.endswith(role) for message in said["forbidden"])
    assert said["no paths"][1].startswith("the request has been made before all known HTTP paths")
    assert said["storage"] == ["storage is (re)initializing"] * 2


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
