"""How soon a launcher that is told to end has its job's DELETE on the wire."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.figures import machine, percentile, show
from benchmarks.steps import Step
from benchmarks.waiting import until

NAMESPACE = "terminated"
STOPS = 100
AT_ONCE = 2
# In seconds from the moment that the create has arrived: its answer, the start, and running come
# after it.
LONGEST_LIFE = 2.5
# This part of them is told at once, while the create is in flight.
EARLY = 0.2


def stops(cluster: Cluster, folder: Path) -> None:
    """Measures launcher processes, as KFP starts them, that get SIGTERM at random moments."""
    cluster.stage(NAMESPACE, Play(lambda: FOREVER, line_every=0.02))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        delays = list(pool.map(lambda _: _stopped(cluster, folder), range(STOPS)))
    milliseconds = [1000 * delay for delay in delays]
    against = (
        f"limit 50; {STOPS} processes, SIGTERM within {LONGEST_LIFE} s of the create's arrival; "
        f"median {percentile(milliseconds, 0.5):.1f}, most {max(milliseconds):.1f}; {machine()}"
    )
    show("sigterm_to_delete_p99_ms", percentile(milliseconds, 0.99), "ms", against)


def _stopped(cluster: Cluster, folder: Path) -> float:
    """Starts a step and ends it at a random moment; the seconds from its signal to its DELETE."""
    step = Step(cluster, NAMESPACE, folder)
    try:
        assert step.pid
        created = until(lambda: _created(cluster, step), 60.0)
        life = 0.0 if random.random() < EARLY else random.uniform(0, LONGEST_LIFE)
        time.sleep(max(0.0, created + life - time.monotonic()))
        told = step.terminate()
        return until(lambda: _deleted(cluster, step, told), 30.0) - told
    finally:
        step.stop()


def _created(cluster: Cluster, step: Step) -> float | None:
    return next((at for job, at in [*cluster.created.items()] if job.startswith(step.name)), None)


def _deleted(cluster: Cluster, step: Step, since: float) -> float | None:
    asked = (r for r in cluster.requests(NAMESPACE, since) if r.verb == "delete")
    return next((r.time for r in asked if f"/pytorchjobs/{step.name}" in r.path), None)
