"""Many launchers at once against one server, which is unavailable for a while as they wait."""

from __future__ import annotations

import time
from pathlib import Path

from harness.hands import until

from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.figures import machine, show
from benchmarks.steps import Step

LAUNCHERS = 100
STARTED_AT_ONCE = 10
NAMESPACE = "crowd"
# A server that restarts, and a load balancer that drops every connection, in seconds.
AWAY = (3.0, 0.05)
_WINDOW = 0.1


def crowd(cluster: Cluster, folder: Path) -> None:
    """Measures how many requests come at once when the server is back, and whether all succeed."""
    cluster.stage(NAMESPACE, Play(lambda: FOREVER, line_every=1.0))
    began = time.monotonic()
    steps: list[Step] = []
    try:
        for number in range(LAUNCHERS):
            steps.append(Step(cluster, NAMESPACE, folder))
            # A machine of few cores starts no hundred Pythons at once.
            until(lambda n=number: _watches(cluster) > n - STARTED_AT_ONCE, 120.0)
        until(lambda: _watches(cluster) >= LAUNCHERS, 120.0)
        started = time.monotonic() - began
        rushes = [_rush(cluster, seconds) for seconds in AWAY]
        cluster.finish(NAMESPACE)
        codes = [step.wait(120.0) for step in steps]
        last = time.monotonic() - max(cluster.ended.values())
    finally:
        for step in steps:
            step.stop()
    for seconds, (rush, total, watching) in zip(AWAY, rushes, strict=True):
        figure = "rush_per_launcher" if seconds > 1 else "rush_per_launcher_reset"
        against = (
            f"most requests in 100 ms after {seconds} s away: {rush} of {LAUNCHERS} launchers; "
            f"{total} in all, the last watch after {watching:.1f} s; {machine()}"
        )
        show(figure, rush / LAUNCHERS, "requests", against)
    against = (
        f"limit 0 of {LAUNCHERS}; all followed their jobs after {started:.0f} s of starting, and "
        f"the last had ended {last:.1f} s after the last job; {machine()}"
    )
    show("crowd_failed", sum(code != 0 for code in codes), "launchers", against)


def _watches(cluster: Cluster, since: float = 0.0) -> int:
    asked = cluster.requests(NAMESPACE, since)
    return sum(r.verb == "watch" and r.path.endswith("/pytorchjobs") for r in asked)


def _rush(cluster: Cluster, away: float) -> tuple[int, int, float]:
    """Lets the server go away; the most requests in a window, all, and when all watch again."""
    time.sleep(6.0)
    gone = time.monotonic()
    cluster.server.go_away(away)
    until(lambda: _watches(cluster, gone + away) >= LAUNCHERS, 60.0)
    watching = time.monotonic() - gone - away
    time.sleep(1.0)
    times = sorted(r.time for r in cluster.requests(NAMESPACE, gone))
    most = max(sum(at <= t < at + _WINDOW for t in times) for at in times)
    return most, len(times), watching
