"""A client of KFP, and the API server that it talks to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from harness.kfp_api.server import KfpServer

from kfp_pytorch.client import Client, connection, runs


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KfpServer]]:
    """Starts servers, for clients that lose no time."""
    monkeypatch.setattr(connection, "_PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(connection, "PATIENCE_S", 1.0)
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.1)
    monkeypatch.setattr(runs, "POLL_S", 0.0)
    monkeypatch.setattr(runs, "SETTLING_PAUSE_S", 0.0)
    # Python's own reader would take most of the time.
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
    for name in ("KF_PIPELINES_ENDPOINT", connection.TOKEN_ENV, connection.COOKIE_ENV):
        monkeypatch.delenv(name, raising=False)
    started = []

    def start(*given: Any, **named: Any) -> KfpServer:
        started.append(KfpServer(*given, **named))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., KfpServer]) -> KfpServer:
    return serve()


@pytest.fixture
def client(server: KfpServer) -> Client:
    return Client(server.url)
