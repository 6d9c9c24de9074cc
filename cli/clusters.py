"""The cluster that a run uses, and what becomes of it and of the run's endpoints afterwards."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from kfp_pytorch.cli.session import Target
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.local import client, lifecycle

NAMESPACE = "default"
_OWNED_FILE = "owned.lock"


@contextmanager
def cluster(root: Path, kubeconfig: Path | None, *, keep: bool) -> Iterator[Target]:
    """Gives a run its cluster: that of a kubeconfig, the local one that is up, or a new one.

    A new local cluster ends with this block, unless it is kept; whatever ends this process ends
    it too. In one that was up before, the endpoints that the block made are deleted, unless they
    are kept.

    Args:
        root: The local cluster's folder; a run's folder is below it in any case.
        kubeconfig: The cluster that is meant instead of the local one; None for the local one.
        keep: Whether cluster and endpoints stay up.

    Yields:
        The cluster.

    Raises:
        click.ClickException: When there is no cluster to be had.
    """
    if kubeconfig:
        yield Target(kubeconfig, root)
        return
    running = lifecycle.status(root)
    if running is None:
        with _started(root, keep=keep) as handle:
            yield _target(handle)
    elif _is_owned(root):
        raise click.ClickException(
            f"Another run has the cluster on {root}, which ends with it. Wait for that run, start "
            f"a cluster that stays with `kfp-pytorch local up` first, or set "
            f"{lifecycle.HOME_ENV} to another folder."
        )
    else:
        with _without_new_endpoints(_target(running), keep=keep):
            yield _target(running)


@contextmanager
def _started(root: Path, *, keep: bool) -> Iterator[lifecycle.ClusterHandle]:
    try:
        if keep:
            handle = lifecycle.start_detached(root)
        else:
            root.mkdir(parents=True, exist_ok=True)
            handle = lifecycle.start_owned(root)
    except (lifecycle.ClusterError, OSError) as error:
        raise click.ClickException(str(error)) from None
    with (root / _OWNED_FILE).open("a") as lock:
        if not keep:
            fcntl.flock(lock, fcntl.LOCK_EX)
        stop = True
        try:
            yield handle
            stop = not keep
        finally:
            if stop:
                lifecycle.stop(root)


def _is_owned(root: Path) -> bool:
    try:
        with (root / _OWNED_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def _without_new_endpoints(target: Target, *, keep: bool) -> Iterator[None]:
    before = _endpoints(target)
    try:
        yield
    finally:
        if not keep:
            for name in sorted(_endpoints(target) - before):
                url = client.path(INFERENCE_SERVICE, target.namespace, name)
                client.request(target.server, "DELETE", url, token=target.token)


def _endpoints(target: Target) -> set[str]:
    url = client.path(INFERENCE_SERVICE, target.namespace)
    listed = client.request(target.server, "GET", url, token=target.token)
    return {item["metadata"]["name"] for item in listed["items"]}


def _target(handle: lifecycle.ClusterHandle) -> Target:
    return Target(handle.kubeconfig, handle.root, NAMESPACE, handle.url, handle.token)
