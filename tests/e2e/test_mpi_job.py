"""MPIJobs of a pipeline: mpirun starts its processes in the pods of workers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.mpi import needs_mpi

from kfp_pytorch.launcher.constants import CONFIG_MAP, MPIJOB, POD

pytestmark = [pytest.mark.slow, pytest.mark.local_cluster, needs_mpi]

# The pod of a step has the name of its run, and no such label.
MPI_LABEL = "training.kubeflow.org/replica-type"
PIPELINES = Path(__file__).with_name("mpi_pipelines.py")


def of_job(cluster: Any, kind: Any, name: str) -> list[Any]:
    return [o for o in cluster.objects(kind) if o["metadata"]["name"].startswith(f"{name}-")]


def test_two_workers_of_two_slots_add_up_their_ranks_and_the_launcher_reports(cluster, check_crd):
    ran = cluster.run(f"{PIPELINES}:by_mpi")
    assert ran.code == 0, ran.stderr
    assert ran.summary["metrics"] == {"ranks": 4.0, "total": 6.0}
    (job,) = of_job(cluster, MPIJOB, "by-mpi")
    check_crd("mpijobs", job)
    name = job["metadata"]["name"]
    for rank in range(4):
        assert f"launcher-0 | rank {rank} of 4 in {name}-worker-{rank // 2}" in ran.stderr
    assert "warning: Training ran as" not in ran.stderr
    # Workers end with the launcher.
    assert [p["metadata"]["name"] for p in of_job(cluster, POD, name)] == [f"{name}-launcher"]


def test_a_rank_that_fails_fails_the_step_with_its_traceback(cluster):
    ran = cluster.run(f"{PIPELINES}:by_mpi", fail_rank=3)
    assert ran.code == 1
    words = " ".join(ran.stderr.split())
    assert "raised ValueError: rank 3 of 4 is no good: $HOME `x`" in words
    assert "MPI_ABORT was invoked on rank 3" in words


def test_a_run_that_is_stopped_leaves_nothing_of_its_job(cluster):
    line = [sys.executable, "-m", "kfp_pytorch.cli", "run", f"{PIPELINES}:sleeps"]
    line += ["--local", "--json", "--root", str(cluster.root)]
    run = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    for words in run.stderr:
        if "rank sleeps" in words:
            break
    run.send_signal(signal.SIGTERM)
    run.stderr.read()
    assert run.wait() == 143
    ends = time.monotonic() + 60
    while left := [*of_job(cluster, MPIJOB, "sleeps"), *of_job(cluster, CONFIG_MAP, "sleeps")] or [
        pod for pod in of_job(cluster, POD, "sleeps") if MPI_LABEL in pod["metadata"]["labels"]
    ]:
        assert time.monotonic() < ends, left
        time.sleep(0.2)
