"""gRPC beside KServe's default server."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.figures import machine, percentile, show
from benchmarks.serving.grpc_load import METHOD
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
    with running(commands, served.threads) as servers:
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
    rest = f"{ROUNDS} rounds of {seconds:g} s, {CALLS} calls at once; {served.about}; {machine()}"
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
    """Sends one request again and again, several at once, each over a connection of its own.

    One process that sends is h2load's where it is installed: a Python one takes as much of the
    machine as the server does. Raises RuntimeError: a request failed.
    """
    if processes == 1 and shutil.which("h2load"):
        return _h2load(port, request, seconds, calls)
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


def _h2load(port: int, request: Path, seconds: float, calls: int) -> Load:
    message = request.read_bytes()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = channel.unary_unary(METHOD)(message, timeout=60)
    body, log = request.with_suffix(".grpc"), request.with_suffix(".log")
    body.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
    log.unlink(missing_ok=True)
    command = ["h2load", "-t1", f"-c{calls}", "-m1", f"-D{max(1, round(seconds))}", "-d", str(body)]
    command += ["-H", "te: trailers", "-H", "content-type: application/grpc", f"--log-file={log}"]
    command.append(f"http://127.0.0.1:{port}{METHOD}")
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    match = re.search(
        r"finished in \S+ ([\d.]+) req/s.* (\d+) succeeded.*\((\d+)\) data", run.stdout, re.S
    )
    # An error is a status after an empty body.
    if match is None or int(match[3]) < int(match[2]) * (5 + len(answer)):
        raise RuntimeError(f"requests to port {port} failed: {run.stdout}{run.stderr}")
    taken = [int(line.split()[2]) / 1000 for line in log.read_text().splitlines()]
    return Load(float(match[1]), percentile(taken, 0.99))
