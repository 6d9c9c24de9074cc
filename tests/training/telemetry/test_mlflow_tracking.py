"""Reports to MLflow: to a real store, and to servers that fail."""

from __future__ import annotations

import base64
import http.server
import importlib.util
import json
import logging
import os
import threading
from typing import ClassVar

import pytest

from kfp_pytorch.training.errors import Stopped
from kfp_pytorch.training.storage.job_folder import open_folder
from kfp_pytorch.training.telemetry import mlflow_tracking
from kfp_pytorch.training.telemetry.mlflow_tracking import RUN_FILE, open_tracker

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed"
)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """What is said of MLflow in one test is not heard in another."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    # mlflow's own default is a store that people migrate away from, and the one without a server.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv(mlflow_tracking.URI_ENV, str(tmp_path / "mlflow"))
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=str(tmp_path / "mlflow"))


def start(folder, anew=False):
    tracker = open_tracker(open_folder(str(folder)), anew)
    assert tracker is not None
    return tracker


def run_id(folder):
    return json.loads((folder / RUN_FILE).read_text())["run_id"]


@needs_mlflow
def test_a_job_that_was_stopped_continues_its_run_and_repeats_no_point(store, tmp_path):
    job = tmp_path / "job"
    first = start(job)
    first.parameters({"lr": 0.1, "model": "small_cnn"})
    for step in (5, 10, 15):
        first.metrics(step, {"train_loss": 1 / step, "lr": float("nan")})
    first.close(Stopped)
    run = store.get_run(run_id(job))
    assert run.info.status == "KILLED"

    # The checkpoint was of step 10.
    second = start(job)
    second.parameters({"lr": 0.2, "model": "small_cnn"})
    for step in (15, 20):
        second.metrics(step, {"train_loss": 1 / step})
    second.finished()
    second.close(None)
    run = store.get_run(run_id(job))
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "model": "small_cnn"}
    points = store.get_metric_history(run.info.run_id, "train_loss")
    assert [point.step for point in points] == [5, 10, 15, 20]
    assert "lr" not in run.data.metrics


@needs_mlflow
def test_a_job_that_starts_again_is_another_run(store, tmp_path):
    job = tmp_path / "job"
    start(job).close(ValueError)
    first = run_id(job)
    assert store.get_run(first).info.status == "FAILED"
    start(job, anew=True).close(ValueError)
    assert run_id(job) != first


@needs_mlflow
def test_a_job_whose_run_was_deleted_continues_in_another(store, tmp_path):
    job = tmp_path / "job"
    start(job).close(Stopped)
    first = run_id(job)
    store.delete_run(first)
    start(job).close(ValueError)
    assert run_id(job) != first
    assert store.get_run(run_id(job)).info.status == "FAILED"


@needs_mlflow
def test_the_experiment_is_the_one_that_the_environment_names(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of a person")
    job = tmp_path / "a-job"
    start(job).close(None)
    run = store.get_run(run_id(job))
    experiment = store.get_experiment_by_name("of a person")
    assert experiment is not None
    assert run.info.experiment_id == experiment.experiment_id
    assert run.info.run_name == "a-job"


class Failing(http.server.BaseHTTPRequestHandler):
    """A server that answers each request with an error that repeats the request."""

    seen: list[str | None]

    def do_GET(self):
        self.seen.append(self.headers.get("Authorization"))
        body = b"no: " + (self.headers.get("Authorization") or "").encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def failing_server():
    class Own(Failing):
        seen: ClassVar = []

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1], Own.seen
    server.shutdown()
    thread.join()
    server.server_close()


@needs_mlflow
def test_a_server_that_fails_is_a_warning_without_the_password(
    failing_server, tmp_path, monkeypatch, caplog, capfd
):
    port, seen = failing_server
    uri = f"http://somebody:s3cr%2Ft@127.0.0.1:{port}"
    monkeypatch.setenv(mlflow_tracking.URI_ENV, uri)
    with caplog.at_level(logging.DEBUG, logger="kfp_pytorch.training"):
        tracker = start(tmp_path / "job")
        tracker.metrics(1, {"train_loss": 0.5})
        tracker.finished()
        tracker.close(None)
    assert "MLflow failed, and is tried again" in caplog.text
    assert "the last reports to MLflow are lost" in caplog.text
    everything = caplog.text + "".join(capfd.readouterr())
    encoded = base64.b64encode(b"somebody:s3cr/t").decode()
    assert f"Basic {encoded}" in seen
    for secret in ("s3cr/t", "s3cr%2Ft", encoded, uri):
        assert secret not in everything


def test_without_mlflow_the_log_says_what_to_install(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv(mlflow_tracking.URI_ENV, "http://user:hidden@nowhere:1")
    monkeypatch.setattr(mlflow_tracking.importlib.util, "find_spec", lambda _name: None)
    with caplog.at_level(logging.WARNING):
        assert open_tracker(open_folder(str(tmp_path)), anew=False) is None
    assert "kfp-pytorch[mlflow]" in caplog.text
    assert "hidden" not in caplog.text


def test_nothing_is_done_where_no_server_is_named(tmp_path):
    assert open_tracker(open_folder(str(tmp_path)), anew=False) is None


@needs_mlflow
@pytest.mark.parametrize("address", ["http://someone:geheim@[mlflow", "http://u:geheim@a\u2100b"])
def test_an_invalid_address_is_a_warning_without_the_password(
    tmp_path, monkeypatch, caplog, address
):
    monkeypatch.setenv(mlflow_tracking.URI_ENV, address)
    assert open_tracker(open_folder(str(tmp_path)), anew=False) is None
    assert mlflow_tracking.URI_ENV in caplog.text
    assert "geheim" not in caplog.text
