"""How soon after SIGTERM a launcher sends the DELETE of its job."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.faults.actions import Delay, Forbidden
from harness.faults.plan import Fault
from harness.hands import until

from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.figures import machine, percentile, show
from benchmarks.steps import Step

NAMESPACE = "terminated"
STOPS = 100
AT_ONCE = 2
# In seconds from the moment that the create has arrived: its answer, the start, and running come
# after it.
LONGEST_LIFE = 2.5
# This part of them gets SIGTERM at once, while the create is in flight.
EARLY = 0.2

# How soon the API server answers, in seconds, and how many are stopped at each speed.
SPEEDS = (0.005, 0.05, 0.2)
STOPS_A_SPEED = 24


def stops(cluster: Cluster, folder: Path) -> None:
    """Measures launcher processes, as KFP starts them, that get SIGTERM at random moments."""
    cluster.stage(NAMESPACE, Play(lambda: FOREVER, line_every=0.02))
    milliseconds = _delays_ms(cluster, folder, NAMESPACE, STOPS)
    against = (
        f"limit 50; {STOPS} processes, SIGTERM within {LONGEST_LIFE} s of the create's arrival; "
        f"median {percentile(milliseconds, 0.5):.1f}, most {max(milliseconds):.1f}; {machine()}"
    )
    show("sigterm_to_delete_p99_ms", percentile(milliseconds, 0.99), "ms", against)
    for speed in SPEEDS:
        for watched, limit in ((True, 100), (False, 400)):
            _stops_at(cluster, folder, speed, limit, watched=watched)


def _stops_at(cluster: Cluster, folder: Path, speed: float, limit: int, *, watched: bool) -> None:
    """Measures steps of a slow API server, whose own pod's state is known or has to be asked."""
    namespace = f"{NAMESPACE}-{'known' if watched else 'asked'}-{1000 * speed:.0f}"
    cluster.stage(namespace, Play(lambda: FOREVER, line_every=0.02))
    if not watched:
        pods = f"*/namespaces/{namespace}/pods"
        cluster.server.faults.add(Fault(Forbidden(), "watch", pods, times=None))
    path = f"*/namespaces/{namespace}/*"
    cluster.server.faults.add(Fault(Delay(speed), path=path, times=None))
    milliseconds = _delays_ms(cluster, folder, namespace, STOPS_A_SPEED, 1.0)
    cluster.server.faults.clear()
    what = "known" if watched else "asked"
    against = (
        f"limit {limit}; {STOPS_A_SPEED} processes, the state of the own pod is {what}; "
        f"median {percentile(milliseconds, 0.5):.1f}; {machine()}"
    )
    figure = f"sigterm_to_delete_{what}_{1000 * speed:.0f}ms_server_p99_ms"
    show(figure, percentile(milliseconds, 0.99), "ms", against)


def _delays_ms(
    cluster: Cluster, folder: Path, namespace: str, stops: int, least: float = 0.0
) -> list[float]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        delays = pool.map(lambda _: _stopped(cluster, folder, namespace, least), range(stops))
        return [1000 * delay for delay in delays]


def _stopped(cluster: Cluster, folder: Path, namespace: str, least: float) -> float:
    """Starts a step and ends it at a random moment; the seconds from its signal to its DELETE."""
    step = Step(cluster, namespace, folder)
    try:
        assert step.pid
        created = until(lambda: _created(cluster, step), 60.0)
        life = random.uniform(least, LONGEST_LIFE) if least or random.random() > EARLY else 0.0
        time.sleep(max(0.0, created + life - time.monotonic()))
        signalled = step.terminate()
        return until(lambda: _deleted(cluster, step, namespace, signalled), 30.0) - signalled
    finally:
        step.stop()


def _created(cluster: Cluster, step: Step) -> float | None:
    return next((at for job, at in [*cluster.created.items()] if job.startswith(step.name)), None)


def _deleted(cluster: Cluster, step: Step, namespace: str, since: float) -> float | None:
    asked = (r for r in cluster.requests(namespace, since) if r.verb == "delete")
    return next((r.time for r in asked if f"/pytorchjobs/{step.name}" in r.path), None)
