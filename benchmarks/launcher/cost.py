"""What a launcher costs while its job merely runs, beside the waits of the public SDKs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.hands import until

from benchmarks.cluster import FOREVER, Cluster, Play
from benchmarks.figures import machine, show
from benchmarks.peers import HERE, PEERS, Peer, Waiting
from benchmarks.steps import Step, cpu_s, scaled

# An hour of the launcher's limits takes a minute, one of the peers' pauses three: their requests
# take their time, which is not scaled.
FACTOR = 60.0
PEER_FACTOR = 20.0
HOURS = 3
LOG_LINE_EVERY = 10.0


@dataclass
class Hours:
    requests: list[int] = field(default_factory=list)  # in each hour
    cpu_s: list[float] = field(default_factory=list)  # in each hour
    rss_mb: list[float] = field(default_factory=list)  # at the beginning and after each hour


def costs(cluster: Cluster, folder: Path) -> None:
    """Measures some hours of launchers, with a log that is written to and one that is silent."""
    plays = {"chatty": LOG_LINE_EVERY / FACTOR, "quiet": 0.0}
    steps = {}
    for name, every in plays.items():
        cluster.stage(name, Play(lambda: FOREVER, line_every=every))
        steps[name] = Step(cluster, name, folder, limits=scaled(FACTOR))
    peers = [Waiting(peer, cluster, PEER_FACTOR) for peer in PEERS]
    try:
        for name in steps:
            until(lambda name=name: _follows_log(cluster, name), 60.0)
        waiting = [peer for peer in peers if peer.begun()]
        time.sleep(2.0)
        taken, asked = _measure(cluster, steps, waiting)
        for name, step in steps.items():
            cluster.finish(name)
            if step.wait(60.0):
                raise RuntimeError(f"a launcher failed:\n{step.log}")
    finally:
        for step in steps.values():
            step.stop()
        for peer in peers:
            peer.stop()
    _show_requests(taken, asked)
    _show_cost(taken)


def _measure(
    cluster: Cluster, steps: dict[str, Step], waiting: list[Waiting]
) -> tuple[dict[str, Hours], dict[str, tuple[int, float]]]:
    """Runs the hours; what launchers took, and an hour's requests and CPU of each peer."""
    taken = {name: Hours(rss_mb=[step.rss_mb()]) for name, step in steps.items()}
    began = time.monotonic()
    before = {peer.peer.script: peer.cpu_s() for peer in waiting}
    for hour in range(HOURS):
        since, cpu = time.monotonic(), {name: cpu_s(step.pid) for name, step in steps.items()}
        time.sleep(max(0.0, began + (hour + 1) * 3600 / FACTOR - since))
        for name, step in steps.items():
            taken[name].requests.append(len(cluster.requests(name, since)))
            taken[name].cpu_s.append(cpu_s(step.pid) - cpu[name])
            taken[name].rss_mb.append(step.rss_mb())
    hours = (time.monotonic() - began) * PEER_FACTOR / 3600
    asked = {}
    for peer in waiting:
        used = peer.cpu_s() - before[peer.peer.script]
        asked[peer.peer.script] = (round(len(peer.requests(began)) / hours), used / hours)
    return taken, asked


def _show_requests(taken: dict[str, Hours], asked: dict[str, tuple[int, float]]) -> None:
    most = max(max(hours.requests) for hours in taken.values())
    words = "; ".join(f"log {name}: {hours.requests}" for name, hours in taken.items())
    against = f"the job runs, its log is followed; {HOURS} hours at {FACTOR:.0f}-fold speed"
    show("requests_per_hour", most, "requests", f"limit 30; {against}; {words}")
    peers = {peer: asked.get(peer.script, (peer.an_hour, 0.0))[0] for peer in PEERS}
    against = (
        f"limit 8; an hour at {PEER_FACTOR:.0f}-fold speed, whose requests' own time is not scaled "
        f"and so makes them fewer: {'; '.join(_peer_words(peer, asked) for peer in PEERS)}"
    )
    show("requests_ratio", min(peers.values()) / most, "times fewer", against)


def _peer_words(peer: Peer, asked: dict[str, tuple[int, float]]) -> str:
    name = f"{peer.package} {peer.call}"
    if peer.script not in asked:
        return f"{name}: {peer.an_hour} requests by its source, for it could not be installed"
    requests, cpu = asked[peer.script]
    return f"{name}: {requests} requests, {cpu:.2f} s of CPU"


def _show_cost(taken: dict[str, Hours]) -> None:
    cpu = max(statistics.median(hours.cpu_s) for hours in taken.values())
    words = "; ".join(f"{name} {[round(s, 2) for s in h.cpu_s]}" for name, h in taken.items())
    against = f"a line of log every {LOG_LINE_EVERY:.0f} s, or none; {words}; {machine()}"
    show("launcher_cpu_s_per_hour", cpu, "s", against)
    imports = statistics.median(_imports() for _ in range(3))
    rss = max(max(hours.rss_mb) for hours in taken.values())
    grown = max(hours.rss_mb[-1] - hours.rss_mb[0] for hours in taken.values())
    against = (
        f"limit 15; {rss:.1f} MB against {imports:.1f} MB of importing kfp.dsl and kubernetes; "
        f"grew by {grown:.1f} MB in {HOURS} hours"
    )
    show("rss_over_imports_mb", rss - imports, "MB", against)


def _imports() -> float:
    words = [sys.executable, str(HERE / "imports.py")]
    environ = os.environ | {"_KFP_RUNTIME": "true"}
    ended = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return float(ended.stdout)


def _follows_log(cluster: Cluster, namespace: str) -> bool:
    return any(r.path.endswith("/log") for r in cluster.requests(namespace))
