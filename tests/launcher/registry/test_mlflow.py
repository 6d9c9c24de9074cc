"""A model in MLflow's registry: in a stand-in with faults and, slowly, in MLflow's own server."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.ports import free_port
from harness.registries.serving import Fault, Served

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.local.processes import guarded

Register = Callable[..., Any]
API = "/api/2.0/mlflow"
needs_server = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mlflow", "flask", "alembic")),
    reason="MLflow's server is not installed",
)


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}{API}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def versions(url: str, name: str = "digits") -> list[dict[str, Any]]:
    """A model's versions, with their tags as a dict."""
    found = ask(url, f"/model-versions/search?filter=name%20%3D%20%27{name}%27").get(
        "model_versions", []
    )
    return [v | {"tags": {t["key"]: t["value"] for t in v.get("tags", [])}} for v in found]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    options = f"--backend-store-uri sqlite:///{folder}/store.db --host 127.0.0.1 --workers 1"
    command = [sys.executable, "-m", "mlflow", "server", *options.split(), "--port", str(port)]
    ours = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    log = folder / "log"
    with log.open("w") as file:
        process = guarded.popen(
            command, grace=5, env={**os.environ, **ours}, stdout=file, stderr=subprocess.STDOUT
        )
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 240
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture(params=["stand-in", pytest.param("mlflow", marks=[pytest.mark.slow, needs_server])])
def server(request: pytest.FixtureRequest) -> str:
    if request.param == "mlflow":
        return str(request.getfixturevalue("own_server"))
    return str(request.getfixturevalue("mlflow_server").url)


def failure(call: Callable[[], Any]) -> str:
    with pytest.raises(StepError) as failed:
        call()
    return failed.value.message


def test_a_model_is_registered_once_with_where_it_comes_from(
    register: Register, server: str
) -> None:
    given = {"mlflow_tracking_uri": f"{server}/", "model_name": "lineage"}
    first = register(**given, run_name="tuesday", properties={"team": "vision", "cost": 3})
    second = register(**given, run_name="wednesday")
    assert second == first
    (version,) = versions(server, "lineage")
    assert version["source"] == "pvc://kfp-pytorch/r1/digits-1a2b/export"
    tags = {
        "run_id": "0b7a2f5e-1111-4222-8333-444455556666",
        "pipeline": "train-and-serve",
        "task": "pytorch-job",
        "run_name": "tuesday",
        "job": "digits-1a2b",
        "namespace": "team",
        "folder": "pvc://kfp-pytorch/r1/digits-1a2b",
        "storage_uri": "pvc://kfp-pytorch/r1/digits-1a2b/export",
        "sha256": "ab" * 32,
        "format": "kfp-pytorch",
        "dataset": "s3://data/digits",
        "checkpoint": "390",
        "metric_accuracy": "0.97",
        "version_torch": "2.8.0",
        "version": first.outputs.version,
    }
    ours = {f"kfp_pytorch.{name}": value for name, value in tags.items()}
    assert version["tags"] == {**ours, "team": "vision", "cost": "3"}
    assert first.outputs.mlflow_version == "1"
    assert first.outputs.mlflow_url == f"{server}/#/models/lineage/versions/1"
    assert first.registered["mlflow_version"] == "1"


def test_what_differs_is_changed_and_an_alias_moves_to_the_newest(
    register: Register, server: str
) -> None:
    given = {"mlflow_tracking_uri": server, "model_name": "moving", "mlflow_aliases": ["champion"]}
    register(**given)
    register({"metric_accuracy": 0.98}, **given, description="better")
    (version,) = versions(server, "moving")
    assert version["tags"]["kfp_pytorch.metric_accuracy"] == "0.98"
    assert version["description"] == "better"
    newer = register({"sha256": "cd" * 32}, **given)
    assert newer.outputs.mlflow_version == "2"
    model = ask(server, "/registered-models/get?name=moving")["registered_model"]
    assert model["aliases"] == [{"alias": "champion", "version": "2"}]


def test_a_second_run_with_the_same_model_writes_nothing(
    register: Register, mlflow_server: Served
) -> None:
    given = {"mlflow_tracking_uri": mlflow_server.url, "mlflow_aliases": ["champion"]}
    register(**given)
    mlflow_server.requests.clear()
    register(**given)
    assert mlflow_server.writes == []


@pytest.mark.parametrize("path", ["/registered-models/create", "/model-versions/create"])
@pytest.mark.parametrize("how", ["is_lost", "is_late"])
def test_one_version_is_left_whatever_happens_to_what_creates_it(
    register: Register, mlflow_server: Served, path: str, how: str
) -> None:
    mlflow_server.faults = [Fault("POST", path, **{how: True})]
    done = register(mlflow_tracking_uri=mlflow_server.url)
    assert list(mlflow_server.registry.models["digits"]) == ["1"]
    assert done.outputs.mlflow_version == "1"


def test_a_second_version_that_may_not_be_deleted_stays_and_is_told(
    register: Register, mlflow_server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    forbidden = (403, {"error_code": "PERMISSION_DENIED", "message": "no"}, {})
    mlflow_server.faults = [
        Fault("POST", "/model-versions/create", is_late=True),
        Fault("DELETE", "/model-versions/delete", answer=forbidden),
    ]
    assert register(mlflow_tracking_uri=mlflow_server.url).outputs.mlflow_version == "1"
    assert "version 2 is the same model, and stays" in " ".join(capsys.readouterr().out.split())


def test_the_run_that_training_reported_to_is_the_versions(
    register: Register, server: str, request: pytest.FixtureRequest
) -> None:
    if "mlflow_server" in request.fixturenames:
        request.getfixturevalue("mlflow_server").registry.runs["digits-1a2b"] = "f00d"
        run = "f00d"
    else:
        body = {"experiment_id": "0", "run_name": "digits-1a2b"}
        run = ask(server, "/runs/create", body)["run"]["info"]["run_id"]
    register(mlflow_tracking_uri=server, model_name="found")
    assert versions(server, "found")[0]["run_id"] == run
    register({"job": "another"}, mlflow_tracking_uri=server, mlflow_run_id="beef", version="2")
    assert versions(server)[0]["run_id"] == "beef"


def test_a_version_of_another_model_is_refused(register: Register, server: str) -> None:
    given = {"mlflow_tracking_uri": server, "model_name": "taken", "version": "1.0"}
    register(**given)
    message = failure(lambda: register({"sha256": "cd" * 32}, **given))
    assert "has the version '1.0' of 'taken' as number 1, and it is another model" in message
    assert len(versions(server, "taken")) == 1


@pytest.mark.parametrize("uri", ["s3://bucket", "s3://bucket/a/../b", "s3://bucket/%2e%2e/b"])
def test_a_place_that_mlflow_refuses_is_refused_before_it_is_asked(
    register: Register, server: str, uri: str
) -> None:
    message = failure(lambda: register({"storage_uri": uri}, mlflow_tracking_uri=server))
    assert f"{uri!r}, which MLflow refuses" in message
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "/model-versions/create", {"name": "taken", "source": uri})
    assert refused.value.code == 400


def test_an_answer_of_mlflow_that_refuses_is_told_after_what_is_registered(
    register: Register, registry: Served, mlflow_server: Served
) -> None:
    refused = (400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "no such scheme"}, {})
    mlflow_server.faults = [Fault("POST", "/model-versions/create", answer=refused)]
    both = {"registry_url": registry.url, "mlflow_tracking_uri": mlflow_server.url}
    message = failure(lambda: register(**both))
    assert "400 INVALID_PARAMETER_VALUE no such scheme" in message
    assert "The Model Registry has the model already, as version 2" in message
    done = register(**both)
    assert (done.outputs.model_version_id, done.outputs.mlflow_version) == ("2", "1")
