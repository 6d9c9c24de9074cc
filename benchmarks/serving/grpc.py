"""gRPC beside KServe's default server."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import machine, show
from benchmarks.serving.http import Load
from benchmarks.serving.models import DIGITS, RESNET18, Served
from benchmarks.serving.processes import NAME, kserve, predictor, running

CALLS = 8
ROUNDS = 5


def measure(folder: Path, seconds: float) -> None:
    for served in (DIGITS, RESNET18):
        _compare(served, folder, seconds if served is DIGITS else 2 * seconds)


def _compare(served: Served, folder: Path, seconds: float) -> None:
    export = served.write(folder)
    file = write_request(served.image()[None].astype(np.float32), "FP32", folder / served.name)
    commands = {"predictor": predictor(export), "kserve": kserve(export)}
    found: dict[str, list[Load]] = {name: [] for name in commands}
    with running(commands) as servers:
        for name in commands:
            load(servers[name].grpc_port, file, 1.0)
        for _ in range(ROUNDS):
            for name in commands:
                found[name].append(load(servers[name].grpc_port, file, seconds))
    rates = {name: statistics.median(each.rate for each in loads) for name, loads in found.items()}
    p99s = {name: statistics.median(each.p99 for each in loads) for name, loads in found.items()}
    against = ", ".join(
        f"{name} {rate:.0f} (p99 {p99s[name]:.1f} ms)" for name, rate in rates.items()
    )
    rest = f"{ROUNDS} rounds of {seconds:g} s, {CALLS} calls at once; {machine()}"
    ratio = rates["predictor"] / rates["kserve"]
    show(f"grpc_ratio_{served.name}", ratio, "", f"limit 1.5; requests/s: {against}; {rest}")


def write_request(images: Any, datatype: str, path: Path) -> Path:
    """Writes a serialized request of images, as bytes of a tensor."""
    # `import kserve` parses sys.argv.
    given, sys.argv = sys.argv, sys.argv[:1]
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

    sys.argv = given
    tensor = {"name": "image", "shape": images.shape, "datatype": datatype}
    request = messages.ModelInferRequest(
        model_name=NAME, inputs=[tensor], raw_input_contents=[images.tobytes()]
    )
    file = path.with_suffix(".request")
    file.write_bytes(request.SerializeToString())
    return file


def load(port: int, request: Path, seconds: float, calls: int = CALLS, processes: int = 1) -> Load:
    """Sends one request again and again, several at once, from some processes.

    Raises RuntimeError: a request failed.
    """
    words = [f"127.0.0.1:{port}", str(request), str(seconds), str(calls // processes)]
    command = [sys.executable, "-m", "benchmarks.serving.grpc_load", *words]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    found = [re.search(r"MEASURED (\S+) (\S+)", process.communicate()[0]) for process in started]
    if None in found:
        raise RuntimeError(f"requests to port {port} failed")
    loads = [Load(float(match[1]), float(match[2])) for match in found if match]
    return Load(sum(each.rate for each in loads), max(each.p99 for each in loads))
