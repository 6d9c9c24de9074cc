"""The cluster that a run uses, and whether it and the run's endpoints stay afterwards."""

from __future__ import annotations

import contextlib
import http
import os
import signal
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.local import failures_told
from kfp_pytorch.cli.runs.forward import forwarding
from kfp_pytorch.cli.runs.jobs import NAMESPACE
from kfp_pytorch.cli.runs.session import Target
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, KFP_RUN_ID_LABEL, POD
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.kserve.input_readers import service_name
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.kfp import step
from kfp_pytorch.local.processes import guarded, locks

# What runs that share a cluster have: locks, and a named pipe that keeps it up.
_USERS_FILE, _TURN_FILE, _OWNERS_FILE = "runs.lock", "turn.lock", "owners"
# Starting or stopping a cluster takes seconds.
_TURN_WITHIN_S = 60.0
# Seconds between two checks that the cluster still runs.
_CHECK_EVERY = 1.0


@contextmanager
def cluster(root: Path, kubeconfig: Path | None, run_id: str, *, keep: bool) -> Iterator[Target]:
    """Gives a run its cluster: that of a kubeconfig, the local one that is up, or a new one.

    A new local cluster ends with this block, or with that of the last run that uses it, unless it
    is kept; so it does where these processes are killed. In one that stays, the endpoints that the
    run's steps made are deleted, unless they are kept.

    A run's folder is below `root` in any case. Raises click.ClickException: no cluster can be used
    or started.
    """
    with failures_told():
        if not kubeconfig:
            lifecycle.check_installed()
        lifecycle.make_root(root)
    if kubeconfig:
        with forwarding(kubeconfig) as services:
            yield Target(kubeconfig, root, services=services)
        return
    with _shared(root, keep=keep) as handle:
        target = _target(handle)
        before = _endpoints(target)
        try:
            with _ending_with_it(root):
                yield target
        finally:
            # The endpoints of a cluster that was stopped in the meantime ended with it.
            if not keep and lifecycle.status(root) == handle:
                _delete_endpoints(target, _made_by(target, run_id) - before)


@contextmanager
def _shared(root: Path, *, keep: bool) -> Iterator[lifecycle.ClusterHandle]:
    """The cluster on a root: the one that is up, or a new one; runs share it.

    One that a run has started ends with the last run that uses it, unless a run keeps it.
    """
    with (root / _USERS_FILE).open("a") as users:
        with alone(root), failures_told():
            # Before the cluster is looked for: the last run to leave stops it.
            locks.share(users)
            running = lifecycle.settled(root)
            if running:
                handle, owner = running, guarded.SharedOwner.joined(root / _OWNERS_FILE)
            else:
                handle, owner = _started(root)
        try:
            yield handle
            if keep and owner:
                owner.detach()
        finally:
            with alone(root), failures_told():
                # Where the cluster was detached, nobody is its owner.
                still = guarded.SharedOwner.joined(root / _OWNERS_FILE)
                last = locks.take_alone(users)
                if still and last and lifecycle.status(root) == handle:
                    lifecycle.stop(root)
                for each in filter(None, (owner, still)):
                    each.leave()


def _started(root: Path) -> tuple[lifecycle.ClusterHandle, guarded.SharedOwner]:
    owner = guarded.SharedOwner(root / _OWNERS_FILE)
    try:
        handle = lifecycle.start_owned(root, owner=owner)
    finally:
        owner.started()
    return handle, owner


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Lets one run at a time come to the cluster or leave it."""
    with (root / _TURN_FILE).open("a") as turn:
        if not locks.take(turn, within=_TURN_WITHIN_S):
            raise click.ClickException(
                f"Another run has been starting or stopping the cluster on {root} for "
                f"{_TURN_WITHIN_S:g} s. End it, or set {lifecycle.HOME_ENV} to another folder."
            )
        yield


@contextmanager
def _ending_with_it(root: Path) -> Iterator[None]:
    """Ends the run, as SIGTERM does, when somebody ends its cluster.

    The steps would retry as in an outage, and wait long.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_CHECK_EVERY):
            if not lifecycle.is_locked(root):
                click.echo(f"The cluster on {root} was ended, and the run ends with it.", err=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _endpoints(target: Target) -> set[tuple[str, str]]:
    """The namespace and name of every endpoint of the cluster."""
    kind = INFERENCE_SERVICE
    url = f"/apis/{kind.group}/{kind.version}/{kind.plural}"
    metadata = [item["metadata"] for item in _list(target, url)]
    return {(each["namespace"], each["name"]) for each in metadata}


def _made_by(target: Target, run_id: str) -> set[tuple[str, str]]:
    """The namespace and name of what the steps of a run deploy, by their pods' annotations."""
    selector = urllib.parse.urlencode({"labelSelector": f"{KFP_RUN_ID_LABEL}={run_id}"})
    pods = _list(target, f"{client.path(POD, target.namespace)}?{selector}")
    annotations = (pod["metadata"].get("annotations") or {} for pod in pods)
    texts = [
        each[step.DEPLOYS_ANNOTATION] for each in annotations if step.DEPLOYS_ANNOTATION in each
    ]
    return {made for made in (_deployed(text, target) for text in texts) if made}


def _deployed(text: str, target: Target) -> tuple[str, str] | None:
    """What a step deploys for a namespace and a name; None where it refuses them."""
    namespace, _, name = text.partition("/")
    with contextlib.suppress(InputError):
        deployed_as = service_name("service_name", name)
        return readers.text("namespace", namespace, target.namespace), deployed_as
    return None


def _list(target: Target, url: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = target.request("GET", url)["items"]
    return items


def _delete_endpoints(target: Target, endpoints: set[tuple[str, str]]) -> None:
    for namespace, name in sorted(endpoints):
        url = client.path(INFERENCE_SERVICE, namespace, name)
        try:
            target.request("DELETE", url)
        except client.RequestRefused as error:
            # The step failed before it made it, or it was deleted already.
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise


def _target(handle: lifecycle.ClusterHandle) -> Target:
    return Target(handle.kubeconfig, handle.root, NAMESPACE, handle.url, handle.token)
