"""The command against KFP's API server of tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from harness.kfp_api.server import KfpServer

from kfp_pytorch.client import connection, runs

PIPELINES = Path(__file__).parents[2] / "harness" / "kfp_api" / "pipelines.py"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, quick_yaml: None) -> Iterator[KfpServer]:
    monkeypatch.setattr(connection, "_PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(connection, "FIRST_PATIENCE_S", 0.1)
    monkeypatch.setattr(runs, "POLL_S", 0.0)
    monkeypatch.setattr(runs, "SETTLING_PAUSE_S", 0.0)
    started = KfpServer()
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", started.url)
    yield started
    started.stop()


@pytest.fixture
def kfp(cli: Callable[..., Result], server: KfpServer) -> Callable[..., Result]:
    """Runs a command whose pipelines are those of the harness; it succeeds."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        named = [f"{PIPELINES}{a}" if str(a).startswith(":") else a for a in arguments]
        result = cli(*named)
        assert result.exit_code == code, result.output
        return result

    return invoke


@pytest.fixture
def as_json(kfp: Callable[..., Result]) -> Callable[..., Any]:
    """Runs a command with --json; gives the object that is the last line of its stdout."""

    def invoke(*arguments: object, code: int = 0) -> Any:
        return json.loads(kfp(*arguments, "--json", code=code).stdout.splitlines()[-1])

    return invoke
