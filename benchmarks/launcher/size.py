"""A job with hundreds of workers: how long each part of the launcher's work on it takes.

    python -m benchmarks.launcher.size ORDER.json

is the launcher itself, with a stop-watch around its parts.
"""

from __future__ import annotations

import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.cluster import Cluster, Play
from benchmarks.figures import machine, show
from benchmarks.worker import Order
from kfp_pytorch.launcher.steps import job as step
from kfp_pytorch.launcher.waiting import gather, wait

WORKERS = 512
# What a launcher does one after the other, and what of it is the waiting itself.
PARTS = {
    "manifest": (step, "_build"),
    "create": (step, "ensure"),
    "evidence": (gather.Gatherer, "read_causes"),
    "evidence of a success": (gather.Gatherer, "read_result"),
    "diagnosis": (step, "diagnose"),
    "messages": (step, "read_messages"),
    "report": (step, "render"),
    "artifacts": (step, "write_outputs"),
}


def size(cluster: Cluster, folder: Path) -> None:
    """Measures one job that succeeds, and one of which every pod fails."""
    for name, fails in (("large", False), ("large-fails", True)):
        cluster.stage(name, Play(lambda: 3.0, lambda fails=fails: fails, line_every=1.0))
        kubeconfig = str(cluster.kubeconfig(name))
        inputs = {"num_nodes": WORKERS + 1}
        order = Order(name, kubeconfig, str(folder / name), [name], inputs=inputs)
        result = worker.finish(worker.start(order, __name__))
        if bool(result["error"]) != fails:
            raise RuntimeError(result["error"])
        _show(cluster, result, "failed" if fails else "succeeded")


def _show(cluster: Cluster, result: dict[str, Any], how: str) -> None:
    spans, job = result["spans"], result["job"]
    parts = {part: round(seconds, 3) for part, seconds in spans.items()}
    slowest = max(parts, key=lambda part: parts[part])
    words = (
        f"{WORKERS} workers, {how}; first state {result['first_state']:.2f} s after the create; "
        f"{result['cpu']:.2f} s of CPU while waiting, in which each pod changed 4 times; "
        f"seconds of each part: {json.dumps(parts)}; the slowest: {slowest}"
    )
    if result["error"]:
        lines = result["error"].count("\n") + 1
        words += f"; the message has {lines} lines, {len(result['error'])} characters"
    after = result["at"] - cluster.ended[job]
    against = f"from the job's end to the return; {words}; {machine()}"
    show(f"large_job_{how}_s", after, "s", against)


def main() -> None:
    """Is the launcher: prints what it took."""
    spans: dict[str, float] = defaultdict(float)
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, _timed(getattr(owner, name), part, spans))
    seen: dict[str, float] = {}
    _note_waiting(seen)
    ((job, how),) = worker.carry_out().items()
    first = seen["first"] - seen["begun"]
    result = {"job": job, "spans": spans, "first_state": first, "cpu": seen["cpu"]}
    print(json.dumps(how | result))


def _timed(fn: Callable[..., Any], part: str, spans: dict[str, float]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def timed(*arguments: Any, **keywords: Any) -> Any:
        began = time.monotonic()
        try:
            return fn(*arguments, **keywords)
        finally:
            spans[part] += time.monotonic() - began

    return timed


def _note_waiting(seen: dict[str, float]) -> None:
    run, saw = wait.Wait.run, gather.Gatherer.record_job

    def noted_run(self: wait.Wait) -> wait.End:
        seen["begun"], cpu = time.monotonic(), time.process_time()
        try:
            return run(self)
        finally:
            seen["cpu"] = time.process_time() - cpu

    def noted_saw(self: gather.Gatherer, job: Any, state: Any, previous: Any) -> None:
        if (job.get("status") or {}).get("conditions"):
            seen.setdefault("first", time.monotonic())
        saw(self, job, state, previous)

    wait.Wait.run, gather.Gatherer.record_job = noted_run, noted_saw


if __name__ == "__main__":
    main()
