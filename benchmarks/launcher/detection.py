"""How soon a launcher knows that its job has ended: by watches, by polls, by silent watches."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from harness.faults.actions import Action, Answer
from harness.faults.plan import Fault
from harness.faults.watches import EndWatch, SilentWatch

from benchmarks.cluster import Cluster, Play
from benchmarks.figures import machine, percentile, show
from benchmarks.steps import scaled
from benchmarks.worker import Order, finish, start

JOBS = 200
SILENT_JOBS = 60
# A silent watch is given up after 5 minutes, which pass ten times as fast here.
SILENT_SCALE = 10.0


def watched(cluster: Cluster, folder: Path) -> None:
    """The usual way: with a watch that works."""
    seconds = _detect(cluster, folder, "watched", JOBS, Play(_soon, _fails, line_every=0.2))
    against = f"limit 1; {_words(seconds)}; two launchers at a time; {machine()}"
    show("detection_p99_s", percentile(seconds, 0.99), "s", against)


def polled(cluster: Cluster, folder: Path) -> None:
    """With nothing left but polls: no watch of the job or its pods, and no log."""
    seconds = []
    for name, action in (("refused", Answer(500)), ("cut", EndWatch(0))):
        _break(cluster, name, action)
        # Long enough for the pauses between polls to have grown to their longest.
        play = Play(lambda: random.uniform(40.0, 100.0), _fails)
        seconds += _detect(cluster, folder, name, JOBS // 2, play, at_once=JOBS // 4)
    against = f"limit 35; every watch refused, then cut at once; {_words(seconds)}; {machine()}"
    show("detection_poll_p99_s", percentile(seconds, 0.99), "s", against)


def silent(cluster: Cluster, folder: Path) -> None:
    """With watches that are open and say nothing, and no log."""
    _break(cluster, "silent", SilentWatch())
    limits = scaled(SILENT_SCALE)
    play = Play(lambda: random.uniform(5.0, 65.0), _fails)
    at_once = SILENT_JOBS // 2
    found = _detect(cluster, folder, "silent", SILENT_JOBS, play, at_once=at_once, limits=limits)
    seconds = [s * SILENT_SCALE for s in found]
    against = (
        f"limit 300; limits and result scaled by {SILENT_SCALE:.0f}; {_words(seconds)}; {machine()}"
    )
    show("detection_silent_max_s", max(seconds), "s", against)


def _soon() -> float:
    return random.uniform(0.1, 0.6)


def _fails() -> bool:
    """Every third job fails: then the launcher explains why, and deletes it, before it returns."""
    return random.random() < 1 / 3


def _break(cluster: Cluster, namespace: str, watch: Action) -> None:
    where = f"*/namespaces/{namespace}"
    cluster.server.faults.add(
        Fault(watch, "watch", f"{where}/*", times=None),
        # The end of the log would show it, too.
        Fault(Answer(500), "get", f"{where}/pods/*/log", times=None),
    )


def _detect(
    cluster: Cluster,
    folder: Path,
    namespace: str,
    jobs: int,
    play: Play,
    *,
    at_once: int = 1,
    limits: Mapping[str, float] | None = None,
) -> list[float]:
    """Runs jobs in two processes; returns the seconds from each one's end to its launcher's."""
    cluster.stage(namespace, play)
    workers = []
    for number in range(2):
        name = f"{namespace}-{number}"
        names = [f"{name}-{i}" for i in range(jobs // 2)]
        kubeconfig = str(cluster.kubeconfig(namespace))
        order = Order(namespace, kubeconfig, str(folder / name), names, at_once, limits or {})
        workers.append(start(order))
    seconds = []
    for job, how in (item for worker in workers for item in finish(worker).items()):
        if bool(how["error"]) != (job in cluster.failed):
            raise RuntimeError(f"the launcher of {job} ended with {how['error'] or 'success'!r}")
        seconds.append(how["at"] - cluster.ended[job])
    return seconds


def _words(seconds: list[float]) -> str:
    return f"{len(seconds)} jobs, median {percentile(seconds, 0.5):.2f}, most {max(seconds):.2f}"
