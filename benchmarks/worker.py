"""Many launchers in one process, one after the other or at once in threads.

    python -m benchmarks.worker ORDER.json

ORDER.json holds an `Order`. The answer goes to stdout, one JSON object: by job name, when its
launcher returned, in seconds of the monotonic clock, and the error's words, if any.
"""

from __future__ import annotations

import json
import os
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


@dataclass(frozen=True)
class Order:
    """What a worker is to do.

    Attributes:
        limits: The launcher's limits that differ from the usual.
    """

    namespace: str  # the namespace of the jobs
    kubeconfig: str  # the way to the server
    folder: str  # for artifacts
    names: list[str]  # a launcher for each
    at_once: int = 1  # how many launchers at once
    limits: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)  # inputs of all launchers


@dataclass(frozen=True)
class Return:
    """How a launcher returned: when, by the monotonic clock, and with which error, if any."""

    at: float
    error: str


def launch(order: Order, name: str) -> tuple[str, Return]:
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
    try:
        train(
            PYTORCH_JOB,
            connect(order.namespace),
            inputs,
            Artifacts(**outputs),
            Limits(**order.limits),
            Stopper(leave=lambda _code: None),
        )
    except Exception as failure:  # every end counts, and is told
        error = f"{type(failure).__name__}: {failure}"
    return job, Return(time.monotonic(), error)


def carry_out(order: Order) -> dict[str, Return]:
    """Runs the launchers; how each returned, by the job's name. What they say goes nowhere."""
    os.environ["KUBECONFIG"] = order.kubeconfig
    with (
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
        ThreadPoolExecutor(order.at_once) as pool,
    ):
        return dict(pool.map(lambda name: launch(order, name), order.names))


def main() -> None:
    """Carries out the order and tells what came of it."""
    order = Order(**json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps({job: asdict(how) for job, how in carry_out(order).items()}))


if __name__ == "__main__":
    main()
