"""Everything that is measured of the launcher, on one local API server over HTTP.

    python -m benchmarks.launcher [PART ...]

prints one JSON object a figure: {"figure", "value", "unit", "against"}. The API server is real in
all that a client sees; the operator and the kubelet follow a script. Without PART, all of it is
measured, which takes about ten minutes, most of which is waiting. Parts and their figures:

- bootstrap: bootstrap_s; overhead: step_overhead_s; detection: detection_p99_s
- hours: detection_poll_p99_s, detection_silent_max_s, requests_per_hour, requests_ratio,
  launcher_cpu_s_per_hour, rss_over_imports_mb
- stops: sigterm_to_delete_p99_ms, sigterm_to_delete_{known,asked}_DELAYms_server_p99_ms
- size: large_job_succeeded_s, large_job_failed_s
- crowd: rush_per_launcher, rush_per_launcher_reset, crowd_failed
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cluster import Cluster, cluster
from benchmarks.figures import parser
from benchmarks.launcher import bootstrap, cost, crowd, detection, overhead, size, stop
from benchmarks.steps import command

Part = Callable[[Cluster, Path], None]


def at_once(*parts: Part) -> Part:
    """Parts that mostly wait, and so may be measured at the same time."""

    def together(server: Cluster, folder: Path) -> None:
        with ThreadPoolExecutor(len(parts)) as pool:
            for done in [pool.submit(part, server, folder) for part in parts]:
                done.result()

    return together


PARTS: dict[str, Part] = {
    "bootstrap": bootstrap.bootstrap,
    "overhead": overhead.overhead,
    "detection": detection.watched,
    "hours": at_once(detection.polled, detection.silent, cost.costs),
    "stops": stop.stops,
    "size": size.size,
    "crowd": crowd.crowd,
}


def main() -> None:
    options = parser("benchmarks.launcher", __doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    names = options.parse_args().parts
    unknown = set(names) - set(PARTS)
    if unknown:
        options.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # Compiling a component is none of what is measured.
    command()
    bookmarks = 60.0 / cost.FACTOR
    with (
        tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder,
        cluster(Path(folder), bookmark_every=bookmarks) as server,
    ):
        for name in names or PARTS:
            PARTS[name](server, Path(folder))


if __name__ == "__main__":
    main()
