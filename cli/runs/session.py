"""One local run, from the compiled package to its summary."""

from __future__ import annotations

import contextlib
import http
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.runs import labels, run_folder, summary
from kfp_pytorch.cli.runs.events import Follower, TerminalProgress
from kfp_pytorch.cli.runs.signals import Interrupted
from kfp_pytorch.client.packages import messages
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.known_tasks import defaults
from kfp_pytorch.components.forms import THIS_PYTHON, image_form
from kfp_pytorch.launcher import constants
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.kfp import runner, step
from kfp_pytorch.local.kfp.runner import Run
from kfp_pytorch.local.processes import guarded

# A launcher needs this long to delete its job, and `local/kfp/step.py` to end the rest.
GRACE_SECONDS = step.GRACE_SECONDS + 3
# What Argo calls the ends of a Workflow.
_PHASES = {"succeeded": "Succeeded", "failed": "Failed", "terminated": "Failed"}


@dataclass(frozen=True)
class Target:
    """The cluster of a run."""

    kubeconfig: Path  # the file that `KUBECONFIG` names for the steps
    root: Path  # where the run's folder is made
    namespace: str = ""  # of the steps' Pod objects; empty when they have none, as elsewhere
    server: str = ""  # the local cluster's address; empty when it is elsewhere
    token: str = field(default="", repr=False)  # its bearer token
    services: str = ""  # where the services of a cluster elsewhere are reached, see `forward`

    @property
    def claims(self) -> Path | None:
        """The folder with the claims of the namespace, when it is on this machine."""
        return self.root / "claims" / self.namespace if self.server else None

    def request(self, method: str, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Asks the local cluster's API server. A PATCH is a merge patch.

        Raises RequestRefused: the server answers with an error. Raises click.ClickException: it
        does not answer.
        """
        try:
            return client.request(self.server, method, url, body, token=self.token)
        except OSError as error:
            raise click.ClickException(
                f"The local cluster at {self.server} does not answer: {error}. See "
                f"{self.root / lifecycle.LOG_FILE}; end it with `kfp-pytorch local down`, and "
                "run again."
            ) from None


def run(
    package: Package,
    wanted: Run,
    target: Target,
    progress: TerminalProgress,
    *,
    variables: Mapping[str, str] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Runs a pipeline's steps on this machine, against a cluster, to the end.

    `variables`: further ones of the steps. `settings`: fields of `step.Setting`.
    Returns the summary. It is written into the run's folder too. Raises Interrupted: a signal ended
    this process's waiting, once every step has ended; it has the summary.
    """
    folder = target.root / "runs" / wanted.name
    place = summary.Place(folder, target.claims)
    follower = Follower(progress, labels.attempts(package.spec))
    kubernetes = messages.kubernetes_settings(package.platform) if target.server else {}
    known = defaults(package.spec["root"], {}) | wanted.arguments
    form = runner.local_form(image_form(package.spec, THIS_PYTHON), wanted.name, kubernetes, known)

    def ended(status: str) -> dict[str, Any]:
        _record(wanted, target, _PHASES[status])
        result = summary.summarise(package, follower.finish(), place, status)
        try:
            (folder / run_folder.SUMMARY_FILE).write_text(json.dumps(result), encoding="utf-8")
        except OSError as error:
            click.echo(str(lifecycle.HomeError(folder / run_folder.SUMMARY_FILE, error)), err=True)
        return result

    with run_folder.log(folder) as log:
        run_folder.write(folder, wanted, form)
        try:
            setting = replace(_setting(wanted, target, folder), **settings)
            code = _follow(folder, setting, variables or {}, target, follower, log)
        except Interrupted as interrupted:
            interrupted.summary = ended("terminated")
            raise
        return ended("succeeded" if code == 0 else "failed")


def _follow(
    folder: Path,
    setting: step.Setting,
    variables: Mapping[str, str],
    target: Target,
    follower: Follower,
    log: FileIO,
) -> int:
    """Runs kfp.local under a guard to its end; returns its exit code."""
    environment = {
        **os.environ,
        **variables,
        "KUBECONFIG": str(target.kubeconfig),
        step.SETTING_ENV: json.dumps(asdict(setting)),
    }
    command = [sys.executable, "-m", runner.__name__, str(folder)]
    # The guard has the log too, and with it the run's lock, until the last process has ended.
    process = guarded.popen(
        command,
        grace=GRACE_SECONDS,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        pass_fds=[log.fileno()],
    )
    try:
        for line in process.stdout or ():
            follower.take(line)
            # A disk that is full ends no run.
            with contextlib.suppress(OSError):
                log.write(line.encode())
        return process.wait()
    except BaseException:
        process.terminate()
        # Read on, or a runner that still writes never ends.
        process.communicate()
        raise


def _setting(wanted: Run, target: Target, folder: Path) -> step.Setting:
    """Returns what the steps need; makes the run's Workflow object where they have pods."""
    uid = _workflow(wanted, target)["metadata"]["uid"] if target.server else ""
    return step.Setting(
        run_id=wanted.id,
        folder=str(folder),
        namespace=target.namespace,
        workflow=wanted.name if uid else "",
        workflow_uid=uid,
        server=target.server,
        token=target.token,
        services=target.services,
    )


def _workflow(wanted: Run, target: Target) -> dict[str, Any]:
    kind = constants.WORKFLOW
    metadata = {"name": wanted.name, "labels": {constants.KFP_RUN_ID_LABEL: wanted.id}}
    status = {"phase": "Running"}
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    url = client.path(kind, target.namespace)
    try:
        return target.request("POST", url, body | {"status": status})
    except client.RequestRefused as error:
        if error.status != http.HTTPStatus.CONFLICT:
            raise
    # A resumed run whose cluster is still up.
    return _patch(wanted, target, {"status": status})


def _record(wanted: Run, target: Target, phase: str) -> None:
    """Records how the run has ended, where there is a Workflow object of it."""
    # The cluster may be stopping; the run's own outcome is what counts.
    with contextlib.suppress(click.ClickException, client.RequestRefused):
        if target.server:
            _patch(wanted, target, {"status": {"phase": phase}})


def _patch(wanted: Run, target: Target, change: dict[str, Any]) -> dict[str, Any]:
    url = client.path(constants.WORKFLOW, target.namespace, wanted.name)
    return target.request("PATCH", url, change)
