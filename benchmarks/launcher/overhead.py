"""What a step adds beyond its own work when a pipeline runs on this machine."""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.figures import machine, show
from benchmarks.launcher import trivial
from kfp_pytorch.cli.runs import run_folder, session
from kfp_pytorch.cli.runs.events import TerminalProgress
from kfp_pytorch.client.packages import find

NAMESPACE = "local-run"
REPEATS = 3
FEW, MANY = 2, 8


class _Work(TerminalProgress):
    """Collects what the steps of a run report of their own work, and shows nothing."""

    def __init__(self) -> None:
        super().__init__(err=True)
        self.seconds: list[float] = []

    def _print(self, text: str) -> None:
        if text.strip().startswith(trivial.WORKED):
            self.seconds.append(float(text.strip().removeprefix(trivial.WORKED)))


def overhead(cluster: Cluster, folder: Path) -> None:
    """Measures two pipelines of idle steps; what more steps take, less their own work."""
    cluster.stage(NAMESPACE, Play(lambda: FOREVER))
    each, cpu = [], []
    for _ in range(REPEATS):
        (long, work, much), (short, less, little) = (
            _run(cluster, folder, pipeline) for pipeline in (trivial.many, trivial.few)
        )
        each.append((long - short - (work - less)) / (MANY - FEW))
        cpu.append((much - little) / (MANY - FEW))
    against = (
        f"limit 0.5 on an idle machine; the steps of a local run, {MANY} against {FEW}, less their "
        f"own work; median of {[round(seconds, 2) for seconds in each]}; "
        f"{statistics.median(cpu):.2f} s of CPU a step; {machine()}"
    )
    show("step_overhead_s", statistics.median(each), "s", against)


def _run(cluster: Cluster, folder: Path, pipeline: Any) -> tuple[float, float, float]:
    """Runs a pipeline as the command does; the seconds of it, of its steps' work, and of CPU."""
    package = find.compile_pipeline(pipeline.name, pipeline)
    target = session.Target(
        cluster.kubeconfig(NAMESPACE), folder, NAMESPACE, server=cluster.server.url
    )
    wanted = run_folder.new_run(package.pipeline_name, {})
    began, cpu = time.monotonic(), _children_cpu()
    progress = _Work()
    summary = session.run(package, wanted, target, progress)
    took = time.monotonic() - began
    if summary["status"] != "succeeded":
        raise RuntimeError(summary["error"])
    if len(progress.seconds) != len(summary["steps"]):
        raise RuntimeError(f"{len(progress.seconds)} steps worked")
    return took, sum(progress.seconds), _children_cpu() - cpu


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
