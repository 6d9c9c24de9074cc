"""An elastic job of a pipeline loses a worker, gains one, and ends as any other does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import PYTORCHJOB

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow, pytest.mark.local_cluster]

PIPELINE = f"{Path(__file__).with_name('training_pipelines.py')}:elastic"
# Enough that training is still on when a worker has come back, which takes a minute here.
EPOCHS = 150


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


@pytest.fixture
def run(cluster: Any, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Job]]:
    known = names(cluster)
    command = [sys.executable, "-m", "kfp_pytorch.cli", "run", PIPELINE, "--local", "--json"]
    command += ["--root", str(cluster.root), "-p", f"epochs={EPOCHS}"]
    with (tmp_path / "stderr").open("w") as told:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True)
    yield process, Job(cluster, known)
    process.kill()
    process.wait()


def test_an_elastic_job_outlives_a_worker_gains_one_and_trains_to_its_accuracy(
    run: tuple[subprocess.Popen[str], Job], tmp_path: Path
) -> None:
    process, job = run
    job.until_logged(" of 2\n", 2)
    job.until_logged("epoch=1 ")
    job.kill(1)
    # The rank that is left goes on where both were; the worker comes back and trains with it.
    job.until_logged("going on from ")
    job.until_logged(" of 2\n", 4)
    job.scale(3)
    job.until_logged(" of 3\n", 3)
    stdout, _ = process.communicate()
    seen = (tmp_path / "stderr").read_text()
    assert process.returncode == 0, seen
    summary = json.loads(stdout)
    assert summary["metrics"]["accuracy"] >= 0.97
    assert summary["model"]["storage_uri"].endswith("/export")
    assert "warning" not in seen
    conditions = {c["type"]: c["status"] for c in job.object["status"]["conditions"]}
    assert conditions["Succeeded"] == "True"
