"""What a step adds beyond its own work when a pipeline runs on this machine."""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import trivial
from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.figures import machine, show

NAMESPACE = "local-run"
REPEATS = 3
FEW, MANY = 2, 8


class _Work:
    """Adds up what the steps of a run say of their own work."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def started(self, step: str) -> None:
        """A step has started."""

    def line(self, step: str, text: str) -> None:  # noqa: ARG002
        """A step has written a line."""
        if text.startswith(trivial.WORKED):
            self.seconds.append(float(text.removeprefix(trivial.WORKED)))

    def ended(self, result: Any) -> None:
        """A step has ended."""


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
    show(
        "step_overhead_s",
        statistics.median(each),
        "s",
        f"limit 0.5 on an idle machine; the steps of a local run, {MANY} against {FEW}, less their "
        f"own work; median of {[round(seconds, 2) for seconds in each]}; "
        f"{statistics.median(cpu):.2f} s of CPU a step; {machine()}",
    )


def _run(cluster: Cluster, folder: Path, pipeline: Any) -> tuple[float, float, float]:
    """Runs a pipeline as the command does; the seconds of it, of its steps' work, and of CPU."""
    from kfp_pytorch.cli.packages import find as packages
    from kfp_pytorch.cli.runs import run_folder as runs
    from kfp_pytorch.cli.runs import session

    package = packages.compile_pipeline(pipeline.name, pipeline)
    target = session.Target(
        kubeconfig=cluster.kubeconfig(NAMESPACE),
        root=folder,
        namespace=NAMESPACE,
        server=cluster.server.url,
    )
    wanted = runs.new_run(package.pipeline_name, {})
    began, cpu = time.monotonic(), _children_cpu()
    progress = _Work()
    told = session.run(package, wanted, target, progress)
    took = time.monotonic() - began
    if told["status"] != "succeeded":
        raise RuntimeError(told["error"])
    if len(progress.seconds) != len(told["steps"]):
        raise RuntimeError(f"{len(progress.seconds)} steps worked")
    return took, sum(progress.seconds), _children_cpu() - cpu


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
