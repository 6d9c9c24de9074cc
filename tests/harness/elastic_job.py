"""An elastic job of a run on the local cluster: its log, and what takes and gives it workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import PYTORCHJOB


class Job:
    """The job of a run, as its objects and the logs of its pods show it."""

    def __init__(self, cluster: Any, known: set[str]) -> None:
        self.cluster = cluster
        (self.name,) = until(lambda: names(cluster) - known)

    @property
    def object(self) -> dict[str, Any]:
        (found,) = (j for j in self.cluster.objects(PYTORCHJOB) if named(j) == self.name)
        return found

    def log(self) -> str:
        """What all its pods printed, of all starts."""
        files = (self.cluster.root / "logs").glob(f"default_{self.name}-worker-*/pytorch/*.log")
        return "".join(path.read_text(errors="replace") for path in sorted(files))

    def until_logged(self, words: str, times: int = 1) -> None:
        until(lambda: self.log().count(words) >= times, lambda: self.log()[-6000:])

    def kill(self, worker: int) -> None:
        """Kills the program of a worker's container with SIGKILL."""
        os.kill(program(f"{self.name}-worker-{worker}"), signal.SIGKILL)

    def scale(self, workers: int) -> None:
        from kubernetes import client, config

        api = client.CustomObjectsApi(config.new_client_from_config(str(self.cluster.kubeconfig)))
        kind, spec = PYTORCHJOB, {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}
        api.patch_namespaced_custom_object(
            kind.group, kind.version, "default", kind.plural, self.name, {"spec": spec}
        )


def named(job: dict[str, Any]) -> str:
    return str(job["metadata"]["name"])


def names(cluster: Any) -> set[str]:
    return {named(job) for job in cluster.objects(PYTORCHJOB)}


def program(pod: str) -> int:
    """The process that a pod's container began with."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"HOSTNAME={pod}".encode() in variables and words[1:3] == [
            b"-m",
            b"kfp_pytorch.training",
        ]:
            return int(path.name)
    raise AssertionError(f"{pod} has no process")


def until(find: Callable[[], Any], told: Callable[[], str] = str, seconds: float = 400) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.2)
    return found
