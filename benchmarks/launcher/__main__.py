"""Everything that is measured of the launcher, on one local API server over HTTP.

    python -m benchmarks.launcher [PART ...]

prints one JSON object a figure: {"figure", "value", "unit", "against"}. The API server is real in
all that a client sees; the operator and the kubelet follow a script. Without PART, all of it is
measured, which takes about ten minutes, most of which is waiting.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cluster import Cluster, cluster
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


def main(names: list[str]) -> None:
    """Measures the parts that are named, or all."""
    unknown = set(names) - set(PARTS)
    if unknown:
        raise SystemExit(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
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
    main(sys.argv[1:])
