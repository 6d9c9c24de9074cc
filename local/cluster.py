"""The local cluster's process: an API server and the controllers of one node, on loopback.

    python -m kfp_pytorch.local.cluster --root DIR [--port N] [--crds DIR]

`kfp_pytorch.local.lifecycle` starts it with the lock of DIR as an open file. When it is ready it
writes DIR/kubeconfig and DIR/cluster.json and prints one JSON line with `url`, `kubeconfig` and
`pid`; when it cannot start, one with `error`. It ends when that line cannot be written. SIGTERM
stops every pod and then the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import yaml

import kfp_pytorch
from kfp_pytorch.launcher.constants import DEFAULT_OUTPUT_URI, SERVING_RUNTIME
from kfp_pytorch.local import lifecycle
from kfp_pytorch.local.apiserver.http.server import Server, kubeconfig
from kfp_pytorch.local.apiserver.registry import NAMESPACE, Registry, read_definitions
from kfp_pytorch.local.apiserver.store import garbage_collector
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kserve.controller import InferenceServiceController
from kfp_pytorch.local.controllers.kserve.knative import revisions
from kfp_pytorch.local.controllers.kubelet.kubelet import Kubelet
from kfp_pytorch.local.controllers.kubernetes import (
    claims,
    installed,
    node,
    one_machine,
    pod_admission,
)
from kfp_pytorch.local.controllers.kubernetes.autoscaler import AutoscalerController
from kfp_pytorch.local.controllers.kubernetes.deployment import DeploymentController
from kfp_pytorch.local.controllers.kubernetes.ports import Ports
from kfp_pytorch.local.controllers.kubernetes.quotas import QuotaController
from kfp_pytorch.local.controllers.kubernetes.requests import Requests
from kfp_pytorch.local.controllers.kubernetes.scheduler import Scheduler
from kfp_pytorch.local.controllers.mpijob.controller import MPIJobController
from kfp_pytorch.local.controllers.pytorchjob.controller import PyTorchJobController
from kfp_pytorch.local.controllers.trainjob.controller import TrainJobController, create_runtime

Object = dict[str, Any]

# In a wheel `manifests` is a folder of the package; in an editable install, a link to it.
_MANIFESTS = Path(kfp_pytorch.__file__).parent / "manifests"


class Cluster:
    """A cluster of one node in this process; port 0 takes a free one."""

    def __init__(self, root: Path, port: int, definitions: list[Object]) -> None:
        self._root = root
        self.api = Api(Registry([*definitions, revisions.DEFINITION]))
        self._token = secrets.token_urlsafe(24)
        self._server = Server(self.api, root / "logs", port, token=self._token)
        ports, gpus, self._requests = Ports(self.api), node.gpus(), Requests()
        self._kubelet = Kubelet(self.api, root, ports, gpus, requests=self._requests)
        pod_admission.install(self.api)
        one_machine.install(self.api)
        self._gpu_count = len(gpus)
        self._ports = ports

    def fill(self) -> None:
        """Create what the cluster begins with: namespaces, the node, accounts, claims, runtimes."""
        self.api.create(NAMESPACE, {"metadata": {"name": "kubeflow"}})
        node.create(self.api, self._gpu_count)
        installed.fill(self.api)
        claims.restore(self.api, self._root)
        claims.ensure(self.api, "default", DEFAULT_OUTPUT_URI.removeprefix("pvc://"))
        create_runtime(self.api)
        for path in sorted(_MANIFESTS.glob("serving-runtime*.yaml")):
            runtime = yaml.safe_load(path.read_text())
            runtime["metadata"]["namespace"] = "default"
            self.api.create(SERVING_RUNTIME, runtime)

    def controllers(self) -> list[Coroutine[Any, Any, None]]:
        """The controllers; each runs until it is cancelled."""
        return [
            garbage_collector.Collector(self.api).run(),
            claims.run(self.api, self._root),
            installed.give_accounts(self.api),
            Scheduler(self.api).run(),
            self._kubelet.run(),
            PyTorchJobController(self.api).run(),
            MPIJobController(self.api, self._root).run(),
            TrainJobController(self.api).run(),
            DeploymentController(self.api).run(),
            AutoscalerController(self.api).run(),
            QuotaController(self.api).run(),
            InferenceServiceController(self.api, self._ports, self._requests).run(),
        ]

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop every pod. Raises OSError: the port is taken."""
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        await self._server.start()
        self.fill()
        tasks = [asyncio.create_task(each) for each in self.controllers()]
        stopped = asyncio.create_task(ending.wait())
        try:
            self._announce()
            # A controller never ends by itself: if one does, its error ends the cluster.
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # First of all: from now on nobody should find this cluster.
            (self._root / lifecycle.STATE_FILE).unlink(missing_ok=True)
            # The controllers before the pods: they would replace the pods that are stopped.
            for task in (stopped, *tasks):
                task.cancel()
            await asyncio.gather(stopped, *tasks, return_exceptions=True)
            await self._kubelet.stop(lifecycle.POD_GRACE)
            await self._server.stop()
        for task in done:
            task.result()

    def _announce(self) -> None:
        path = self._root / lifecycle.KUBECONFIG_FILE
        # kubectl sends no token over plain HTTP, but keeps the path.
        config = kubeconfig(f"{self._server.url}/{self._token}", self._token)
        lifecycle.write_atomically(path, json.dumps(config, indent=1))
        state = {"url": self._server.url, "kubeconfig": str(path), "pid": os.getpid()}
        whole = json.dumps({**state, "token": self._token})
        lifecycle.write_atomically(self._root / lifecycle.STATE_FILE, whole)
        _print_line(state)


def _definitions(folder: Path | None) -> list[Object]:
    if folder is None:
        return []
    if not folder.is_dir():
        raise lifecycle.ClusterError(
            f"no folder {folder}: --crds takes a folder with one CustomResourceDefinition a "
            "JSON file"
        )
    return read_definitions(folder)


def _print_line(what: Object) -> None:
    # Unbuffered: a buffer that could not be written would be tried again at exit.
    os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


def main(arguments: list[str]) -> int:
    """Run the cluster until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kfp_pytorch.local.cluster")
    parser.add_argument("--root", type=Path, default=lifecycle.default_root())
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--crds", type=Path)
    given = parser.parse_args(arguments)
    root = given.root.absolute()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        cluster = Cluster(root, given.port, _definitions(given.crds))
        # All that exists now stays: Python's garbage collector may skip it.
        gc.freeze()
        asyncio.run(cluster.run())
    except BrokenPipeError:
        # The process that started it has ended: nothing would stop it.
        return 1
    except (lifecycle.ClusterError, OSError, ValueError) as error:
        with contextlib.suppress(BrokenPipeError):
            _print_line({"error": _why(error)})
        return 1
    return 0


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        error = lifecycle.HomeError(Path(error.filename), error)
    if isinstance(error, lifecycle.HomeError):
        return str(error)
    reason = error.strerror if isinstance(error, OSError) else None
    return f"the local cluster cannot start: {reason or error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
