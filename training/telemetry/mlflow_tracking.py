"""Reports to an MLflow server, where MLFLOW_TRACKING_URI names one.

All of it happens in a thread: mlflow takes a second to import, and a server may be slow. If the
server fails a warning is logged, and what could not be sent is kept and retried. A job that is
started again continues its run, and no point of a curve is sent twice.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import math
import os
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from kfp_pytorch.training.errors import Stopped, StorageError
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import Folder

LOG = logging.getLogger("kfp_pytorch.training")
URI_ENV = "MLFLOW_TRACKING_URI"
RUN_FILE = "mlflow.json"
_USER_ENV, _PASSWORD_ENV = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
_TOKEN_ENV = "MLFLOW_TRACKING_TOKEN"  # noqa: S105 - a name, not a secret
# By default mlflow waits 120 seconds, tries 7 times, prints addresses and reports its usage.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
# Limits of one request of the server's API, and of a value.
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST_VALUE = 1000, 100, 500
_MOST_KEPT = 50_000
_RETRY_SECONDS = 30.0
# How long the end of a job waits for a slow server, within the pod's grace period.
_CLOSING_SECONDS = 10.0

Point = tuple[str, float, int, int]
"""Name, value, milliseconds since the epoch, step."""


def open_tracker(folder: Folder, anew: bool) -> Tracker | None:
    """Reports to MLflow, if MLFLOW_TRACKING_URI is set and mlflow is installed."""
    uri = os.environ.get(URI_ENV, "").strip()
    if not uri:
        return None
    if importlib.util.find_spec("mlflow") is None:
        LOG.warning(
            "%s is set and nothing is logged there, for mlflow is not installed: install "
            "kfp-pytorch[mlflow] in the training image, or unset the variable",
            URI_ENV,
        )
        return None
    try:
        return Tracker(uri, folder, anew)
    except ValueError:
        # The error may contain the password.
        LOG.warning("nothing is logged to MLflow: %s is no address that can be read", URI_ENV)
        return None


class Tracker:
    """Reports to one run; see the module."""

    def __init__(self, uri: str, folder: Folder, anew: bool) -> None:
        """Starts the thread; the server is not waited for. User and password stay secret."""
        self._secrets = _secrets(uri)
        self._uri = _without_credentials(uri)
        self._folder = folder
        self._anew = anew
        self._lock = threading.Lock()
        self._points: list[Point] = []
        self._parameters: dict[str, str] = {}
        self._status = ""
        self._finished = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Logs arguments. A run that is continued keeps those that it has."""
        with self._lock:
            self._parameters |= {name: str(value) for name, value in values.items()}
        self._wake.set()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Logs values that were measured after a step; values that are not finite are left out."""
        now = int(time.time() * 1000)
        points = [(k, float(v), now, step) for k, v in values.items() if math.isfinite(v)]
        with self._lock:
            self._points += points
            del self._points[:-_MOST_KEPT]
        self._wake.set()

    def finished(self) -> None:
        """Training is done."""
        self._finished = True

    def close(self, kind: type[BaseException] | None) -> None:
        """Sets how this start ended, by its exception, and waits a little until it is sent."""
        stopped = kind is not None and issubclass(kind, Stopped)
        self._status = "FINISHED" if self._finished else "KILLED" if stopped else "FAILED"
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive() or self._points:
            LOG.warning("the last reports to MLflow are lost: the server did not take them")

    def _work(self) -> None:
        run: _Run | None = None
        warned = False
        while True:
            self._wake.wait()
            self._wake.clear()
            # Before it is sent, so that nothing reported in between is lost.
            last = self._closing.is_set()
            try:
                run = run or _Run(self._uri, self._folder, self._anew)
                self._send(run)
                if last:
                    run.end(self._status)
                    return
                warned = False
            except Exception as error:
                # mlflow raises its own errors beside those of its HTTP client and its databases.
                if not warned:
                    LOG.warning("MLflow failed, and is tried again: %s", self._redacted(error))
                warned = True
                if last:
                    return
                self._closing.wait(_RETRY_SECONDS)
                self._wake.set()

    def _send(self, run: _Run) -> None:
        with self._lock:
            parameters, self._parameters = self._parameters, {}
            points, self._points = self._points, []
        try:
            run.log_parameters(parameters)
            run.log_points(points)
        except BaseException:
            with self._lock:
                self._parameters = parameters | self._parameters
                self._points = points + self._points
            raise

    def _redacted(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text[:500]


class _Run:
    def __init__(self, uri: str, folder: Folder, anew: bool) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._last_steps: dict[str, int] = {}
        found = self._old(folder, anew)
        self._continued = found is not None
        self._id, self._parameters = found or (self._new(folder), frozenset())
        LOG.info("logging to the MLflow run %s", self._id)

    def log_parameters(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        fresh = [
            Param(name, value[:_LONGEST_VALUE])
            for name, value in values.items()
            if name not in self._parameters
        ]
        for start in range(0, len(fresh), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=fresh[start : start + _MOST_PARAMETERS])
        self._parameters |= set(values)

    def log_points(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        fresh = [Metric(*point) for point in points if point[3] > self._last_step(point[0])]
        for start in range(0, len(fresh), _MOST_METRICS):
            batch = fresh[start : start + _MOST_METRICS]
            self._client.log_batch(self._id, metrics=batch)
            self._last_steps |= {metric.key: metric.step for metric in batch}

    def end(self, status: str) -> None:
        self._client.set_terminated(self._id, status)

    def _last_step(self, name: str) -> int:
        """The last step of a curve: a job that resumes repeats the steps after its checkpoint."""
        if name not in self._last_steps:
            history = self._client.get_metric_history(self._id, name) if self._continued else []
            self._last_steps[name] = max((point.step for point in history), default=-1)
        return self._last_steps[name]

    def _old(self, folder: Folder, anew: bool) -> tuple[str, frozenset[str]] | None:
        """The run that the environment or the job's folder names, and its arguments."""
        named = os.environ.get("MLFLOW_RUN_ID", "")
        known = named or ("" if anew else _known(folder))
        if not known:
            return None
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(known)
        except MlflowException as error:
            if named or error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        if run.info.lifecycle_stage == "deleted" and not named:
            return None
        self._client.update_run(known, status="RUNNING")
        return known, frozenset(run.data.params)

    def _new(self, folder: Folder) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        found = self._client.get_experiment_by_name(name)
        number = os.environ.get("MLFLOW_EXPERIMENT_ID") or (
            found.experiment_id if found else self._client.create_experiment(name)
        )
        job = folder.uri.rstrip("/").rpartition("/")[2]
        tags = {"kfp_pytorch.folder": folder.uri}
        run_id = str(self._client.create_run(number, tags=tags, run_name=job).info.run_id)
        job_folder.write(folder, RUN_FILE, json.dumps({"run_id": run_id}).encode())
        return run_id


def _known(folder: Folder) -> str:
    try:
        return str(json.loads(folder.read(RUN_FILE))["run_id"])
    except (FileNotFoundError, StorageError, ValueError, KeyError, TypeError):
        return ""


def _secrets(uri: str) -> list[str]:
    """What must not get into a log, the longest first: an error may repeat what was sent."""
    parts = urllib.parse.urlsplit(uri)
    user = urllib.parse.unquote(parts.username or "") or os.environ.get(_USER_ENV, "")
    password = urllib.parse.unquote(parts.password or "") or os.environ.get(_PASSWORD_ENV, "")
    found = {uri, parts.password or "", password, os.environ.get(_TOKEN_ENV, "")}
    if password:
        found.add(base64.b64encode(f"{user}:{password}".encode()).decode())
    return sorted(found - {""}, key=len, reverse=True)


def _without_credentials(uri: str) -> str:
    """Moves a web server's user and password to where mlflow does not print them."""
    parts = urllib.parse.urlsplit(uri)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return uri
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    os.environ[_USER_ENV] = urllib.parse.unquote(user)
    os.environ[_PASSWORD_ENV] = urllib.parse.unquote(password)
    return parts._replace(netloc=host).geturl()
