"""Starts, finds and stops the local cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kfp_pytorch.local.processes import guarded, locks

HOME_ENV = "KFP_PYTORCH_HOME"
STATE_FILE = "cluster.json"
KUBECONFIG_FILE = "kubeconfig"
LOG_FILE = "cluster.log"
POD_GRACE = 10.0
"""Seconds that pods have to end when the cluster stops."""

# What the cluster and its pods import: the extra `local`, which not every installation has.
_MODULES = ("jsonpatch", "jsonschema_rs", "kserve", "starlette", "torch", "uvicorn")
_LOCK_FILE = "cluster.lock"
_GRACE = POD_GRACE + 5
_POLL_S = 0.02


class ClusterError(Exception):
    """The cluster cannot be started or stopped."""


class HomeError(ClusterError):
    """The cluster's folder cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"Cannot write {path}: {error.strerror or error}; "
            f"set {HOME_ENV} or --root to another folder"
        )


@dataclass(frozen=True)
class ClusterHandle:
    """A running local cluster."""

    url: str  # the address of its API server
    kubeconfig: Path  # the kubeconfig for its clients
    pid: int  # the process id of the cluster
    root: Path  # its folder
    token: str = field(repr=False)  # the bearer token of requests to `url`


def default_root() -> Path:
    """The cluster's folder: `KFP_PYTORCH_HOME`, or `~/.kfp-pytorch`."""
    given = os.environ.get(HOME_ENV)
    return Path(given).absolute() if given else Path.home() / ".kfp-pytorch"


def check_installed() -> None:
    """Check that what the cluster and its pods import is installed. Raises ClusterError."""
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ClusterError(
            f"the local cluster needs {', '.join(missing)}, not installed in {sys.prefix}: "
            "install kfp-pytorch[local], as its README says"
        )


def make_root(root: Path) -> None:
    """Make the cluster's folder, readable for this user alone.

    `root`: the folder; it may exist. Raises ClusterError: its name has the character that separates
    files in KUBECONFIG. Raises HomeError: it cannot be written.
    """
    if os.pathsep in str(root):
        raise ClusterError(
            f"the folder {str(root)!r} has {os.pathsep!r} in its name, which separates the "
            f"files in KUBECONFIG; set {HOME_ENV} or --root to another folder"
        )
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (root / LOG_FILE).touch()
    except OSError as error:
        raise HomeError(root, error) from None


def start_detached(root: Path, *, port: int = 0, crds: Path | None = None) -> ClusterHandle:
    """Start a cluster that outlives this process.

    `port`: 0 for a free one. `crds`: a folder with CustomResourceDefinitions to validate by; None
    for those it comes with. Returns the cluster, ready for requests. Raises ClusterError.
    """
    owner = guarded.Owner()
    handle = start_owned(root, port=port, crds=crds, owner=owner)
    owner.detach()
    return handle


def start_owned(
    root: Path, *, port: int = 0, crds: Path | None = None, owner: guarded.Owner | None = None
) -> ClusterHandle:
    """Start a cluster that ends with this process, also when that is killed.

    `owner`: what may detach it later; None if nothing will. See `start_detached` for the rest.
    """
    command = [sys.executable, "-m", "kfp_pytorch.local.cluster"]
    command += ["--root", str(root), "--port", str(port)]
    command += ["--crds", str(crds)] if crds else []
    line, fds = guarded.command(command, grace=_GRACE, owner=owner)
    check_installed()
    make_root(root)
    lock = _lock(root)
    try:
        # The guard and the cluster inherit the lock, and hold it until both have ended.
        with lock, (root / LOG_FILE).open("a") as log:
            # A cluster that was killed has not removed it.
            (root / STATE_FILE).unlink(missing_ok=True)
            process = subprocess.Popen(
                line,
                pass_fds=(*fds, lock.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        return _ready(process, root)
    except BaseException:
        # Also after a Ctrl-C within Popen.
        stop(root)
        raise


def status(root: Path) -> ClusterHandle | None:
    """The cluster that runs on a folder; None if none does."""
    if not is_locked(root):
        return None
    try:
        state = json.loads((root / STATE_FILE).read_text())
        kubeconfig = Path(state["kubeconfig"])
        return ClusterHandle(state["url"], kubeconfig, int(state["pid"]), root, state["token"])
    except (OSError, ValueError, KeyError):
        return None  # it is starting or stopping


def settled(root: Path, *, timeout: float = _GRACE + 5) -> ClusterHandle | None:
    """The cluster that runs on a folder, once one that is starting or stopping has done so.

    `timeout`: seconds to wait for that. Returns None if none runs. Raises ClusterError: one neither
    answers nor ends in that time.
    """
    deadline = time.monotonic() + timeout
    while is_locked(root):
        running = status(root)
        if running and _listens(running.url):
            return running
        if time.monotonic() >= deadline:
            raise ClusterError(
                f"the cluster on {root} does not answer, nor has it ended in {timeout:g} s; see "
                f"{root / LOG_FILE}, end it with `kfp-pytorch local down`, and run again"
            )
        time.sleep(_POLL_S)
    return None


def stop(root: Path, *, timeout: float = _GRACE + 5) -> bool:
    """Stop the cluster of a folder, also one that is starting, and its pods.

    `timeout`: seconds to wait until its last process has ended. Returns whether there was one.
    Raises ClusterError: a process of it still runs after that time.
    """
    if not is_locked(root):
        return False
    deadline = time.monotonic() + timeout
    signalled = None
    while is_locked(root):
        running = status(root)
        if running and running.pid != signalled:
            signalled = running.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(signalled, signal.SIGTERM)
        if time.monotonic() >= deadline:
            by_force = f", or end it with: kill -9 {signalled}" if signalled else ""
            raise ClusterError(
                f"the cluster on {root} did not end in {timeout:g} s; see "
                f"{root / LOG_FILE}{by_force}"
            )
        time.sleep(_POLL_S)
    return True


def is_locked(root: Path) -> bool:
    """Whether a process of a cluster of this root still runs."""
    return locks.is_held(root / _LOCK_FILE)


def _listens(url: str) -> bool:
    address = urllib.parse.urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=1).close()
    except OSError:
        return False
    return True


def _ready(process: subprocess.Popen[str], root: Path) -> ClusterHandle:
    """Wait for the line that a cluster prints when it is ready or cannot start."""
    assert process.stdout is not None  # noqa: S101 (the caller asks for it)
    with process.stdout as stdout:
        line = stdout.readline()
    printed = json.loads(line) if line else {}
    running = status(root) if "url" in printed else None
    if running:
        return running
    code = process.wait()
    why = f"the local cluster ended with exit code {code}; see {root / LOG_FILE}"
    raise ClusterError(printed.get("error", why))


def _lock(root: Path) -> IO[str]:
    held = (root / _LOCK_FILE).open("a")
    if locks.take(held):
        return held
    held.close()
    running = status(root)
    where = f" at {running.url} (process {running.pid})" if running else ""
    raise ClusterError(
        f"a cluster runs on {root} already{where}: use it, end it with "
        f"`kfp-pytorch local down`, or set {HOME_ENV} to another folder"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a file for this user alone, whole or not at all. Raises HomeError: it cannot."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        with os.fdopen(os.open(partial, flags, 0o600), "w") as file:
            file.write(text)
        partial.replace(path)
    except OSError as error:
        raise HomeError(path, error) from None
