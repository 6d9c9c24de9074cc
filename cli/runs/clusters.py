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
from kfp_pytorch.cli.runs.session import Target
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, KFP_RUN_ID_LABEL, POD
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.kserve.deploy_inputs import service_name
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.kfp import step
from kfp_pytorch.local.processes import guarded, locks

NAMESPACE = "default"
_OWNED_FILE = "owned.lock"
# Seconds between two checks that the cluster still runs.
_CHECK_EVERY = 1.0


@contextmanager
def cluster(root: Path, kubeconfig: Path | None, run_id: str, *, keep: bool) -> Iterator[Target]:
    """Gives a run its cluster: that of a kubeconfig, the local one that is up, or a new one.

    A new local cluster ends with this block, unless it is kept; what ends this process within the
    block ends it too. In one that was up before, the endpoints that the run's steps made are
    deleted, unless they are kept.

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
    if _is_owned(root):
        raise _owned(root)
    running = lifecycle.status(root)
    if running is None:
        with _kept(root) if keep else _ending(root) as handle, _ending_with_it(root):
            yield _target(handle)
        return
    target = _target(running)
    before = _endpoints(target)
    try:
        with _ending_with_it(root):
            yield target
    finally:
        # The endpoints of a cluster that was stopped in the meantime ended with it.
        if not keep and lifecycle.status(root) == running:
            _delete_endpoints(target, _made_by(target, run_id) - before)


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


def _owned(root: Path) -> click.ClickException:
    return click.ClickException(
        f"Another run has the cluster on {root}, which ends with it. Wait for that run, start "
        f"a cluster that stays with `kfp-pytorch local up` first, or set "
        f"{lifecycle.HOME_ENV} to another folder."
    )


@contextmanager
def _kept(root: Path) -> Iterator[lifecycle.ClusterHandle]:
    """A new cluster that stays after the block, unless that fails or this process dies in it."""
    owner = guarded.Owner()
    try:
        handle = lifecycle.start_owned(root, owner=owner)
    except (lifecycle.ClusterError, OSError) as error:
        # A run that began at the same instant may have started one.
        raise _owned(root) if _is_owned(root) else click.ClickException(str(error)) from None
    try:
        yield handle
    except BaseException:
        with failures_told():
            lifecycle.stop(root)
        raise
    owner.detach()


@contextmanager
def _ending(root: Path) -> Iterator[lifecycle.ClusterHandle]:
    """A new cluster that ends with the block."""
    with (root / _OWNED_FILE).open("a") as lock:
        # Before the cluster is there: of two runs that begin at the same instant, one starts it.
        if not locks.take(lock):
            raise _owned(root)
        with failures_told():
            handle = lifecycle.start_owned(root)
        try:
            yield handle
        finally:
            with failures_told():
                lifecycle.stop(root)


def _is_owned(root: Path) -> bool:
    return locks.is_held(root / _OWNED_FILE)


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
