"""Many launchers in one process, one after the other or at once in threads.

    python -m benchmarks.worker ORDER.json

ORDER.json holds an `Order`. The answer goes to stdout, one JSON object: by job name, when its
launcher returned (`at`, in seconds of the monotonic clock), and the error's text, if any.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import longest_suffix
from kfp_pytorch.launcher.kubernetes.client import connect
from kfp_pytorch.launcher.runtime.identity import job_name
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.job import Artifacts, train
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.local.processes import guarded


@dataclass(frozen=True)
class Order:
    namespace: str  # the namespace of the jobs
    kubeconfig: str  # the way to the server
    folder: str  # for artifacts
    names: list[str]  # a launcher for each
    at_once: int = 1  # how many launchers at once
    limits: Mapping[str, float] = field(default_factory=dict)  # those that differ from the usual
    inputs: Mapping[str, Any] = field(default_factory=dict)  # inputs of all launchers


def start(order: Order, module: str = __name__) -> subprocess.Popen[str]:
    path = Path(order.folder, "order.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asdict(order)))
    return guarded.popen([sys.executable, "-m", module, str(path)], stdout=subprocess.PIPE)


def finish(program: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for such a program; returns its answer."""
    text, _ = program.communicate()
    if program.returncode:
        raise RuntimeError(f"a worker ended with {program.returncode}")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def launch(order: Order, name: str) -> tuple[str, dict[str, Any]]:
    """Does what a step does, with a stopper of its own; returns the job's name, and how it went."""
    inputs = parse_inputs(image="train:1", name=name, **order.inputs)
    folder = Path(order.folder) / name
    folder.mkdir(parents=True)
    outputs = {
        part: SimpleNamespace(path=str(folder / part), uri=f"minio://b/{name}/{part}", metadata={})
        for part in ("model", "metrics", "curves", "report")
    }
    job = job_name(name, outputs["model"].uri, longest_suffix(inputs))
    error = ""
    limits, stopper = Limits(**order.limits), Stopper(leave=lambda _code: None)
    kube, artifacts = connect(order.namespace), Artifacts(**outputs)
    try:
        train(PYTORCH_JOB, kube, inputs, artifacts, limits, stopper)
    except Exception as failure:  # every end counts, and is reported
        error = f"{type(failure).__name__}: {failure}"
    return job, {"at": time.monotonic(), "error": error}


def carry_out() -> dict[str, dict[str, Any]]:
    """Runs the launchers of this program's order; how each returned, by the job's name."""
    order = Order(**json.loads(Path(sys.argv[1]).read_text()))
    os.environ["KUBECONFIG"] = order.kubeconfig
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        ThreadPoolExecutor(order.at_once) as pool,
    ):
        return dict(pool.map(lambda name: launch(order, name), order.names))


if __name__ == "__main__":
    print(json.dumps(carry_out()))
