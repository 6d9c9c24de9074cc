"""An elastic job of a pipeline loses a worker, gains one, and ends as any other does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.elastic_job import Job, names

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow, pytest.mark.local_cluster]

PIPELINES = Path(__file__).with_name("training_pipelines.py")
# Enough that training is still on when a worker has come back, which takes a minute here.
EPOCHS = 150


@pytest.fixture
def run(cluster: Any, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Job]]:
    known = names(cluster)
    command = [
        sys.executable,
        "-m",
        "kfp_pytorch.cli",
        "run",
        f"{PIPELINES}:elastic",
        "--local",
        "--json",
    ]
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


def test_plain_ddp_runs_on_workers_only(cluster: Any) -> None:
    ran = cluster.run(f"{PIPELINES}:workers_only")
    assert ran.code == 0, ran.stderr
    assert ran.summary["metrics"] == {"ranks": 3.0}
