"""How long a step takes from its first line to the launcher that it reads from a ConfigMap."""

from __future__ import annotations

import statistics
from pathlib import Path

from harness.kfp.step_pod import Answer, Pod, certificate, serving

from benchmarks.cluster import Cluster
from benchmarks.figures import machine, show
from kfp_pytorch.components import bundle

REPEATS = 10
BEFORE = "import time\nBEGAN = time.monotonic()\n"
AFTER = "print(time.monotonic() - BEGAN)\n"


def bootstrap(_: Cluster, folder: Path) -> None:
    """Measures steps that read the launcher over HTTPS, and ones that have it as a path."""
    archive = bundle.archive()
    certificate(folder)
    with serving(folder) as server:
        server.script = [Answer.with_launcher(archive)]
        pod = Pod.make(folder, server.port, archive, "bootstrap")
        pod.environ["_KFP_RUNTIME"] = "true"
        read = [_seconds(pod) for _ in range(REPEATS)]
        pod.environ["KFP_PYTORCH_LAUNCHER"] = f"{pod.program}.zip"
        given = [_seconds(pod) for _ in range(REPEATS)]
    against = (
        f"from the first line of a step to its component's function; slowest {max(read):.2f}; "
        f"{statistics.median(given):.2f} s without reading the ConfigMap; {machine()}"
    )
    show("bootstrap_s", statistics.median(read), "s", against)


def _seconds(pod: Pod) -> float:
    output, errors = pod.start(BEFORE, AFTER).communicate()
    if errors:
        raise RuntimeError(errors)
    return float(output)
