"""V1 JSON beside a bare FastAPI handler."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import machine, show
from benchmarks.serving.models import DIGITS, RESNET18, Served
from benchmarks.serving.processes import bare, predictor, running

CONNECTIONS = 8
ROUNDS = 5
_LUA = """
local file = io.open("BODY", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["content-type"] = "application/json"
function done(summary, latency, requests)
  local failed = summary.errors.status + summary.errors.read + summary.errors.timeout
  print(string.format("MEASURED %f %f %d", summary.requests / summary.duration * 1e6,
    latency:percentile(99) / 1e3, failed))
end
"""


@dataclass(frozen=True)
class Load:
    """What a server did under load."""

    rate: float  # requests a second
    p99: float  # ms


def measure(folder: Path, seconds: float) -> None:
    for served in (DIGITS, RESNET18):
        _compare(served, folder, seconds if served is DIGITS else 2 * seconds)


def _compare(served: Served, folder: Path, seconds: float) -> None:
    export = served.write(folder)
    body = folder / f"{served.name}.json"
    body.write_text(json.dumps({"instances": [served.image().tolist()]}))
    commands = {"predictor": predictor(export)}
    commands |= {kind: bare(export, kind) for kind in ("async", "sync")}
    found: dict[str, list[Load]] = {name: [] for name in commands}
    with running(commands, served.threads) as servers:
        for name in commands:
            load(servers[name].predict, body, 1.0)
        for _ in range(ROUNDS):
            for name in commands:
                found[name].append(load(servers[name].predict, body, seconds))
    rates = {name: statistics.median(each.rate for each in loads) for name, loads in found.items()}
    p99s = {name: statistics.median(each.p99 for each in loads) for name, loads in found.items()}
    best_rate, best_p99 = max(rates["async"], rates["sync"]), min(p99s["async"], p99s["sync"])
    rest = (
        f"{ROUNDS} rounds of {seconds:g} s, {CONNECTIONS} connections; {served.about}; {machine()}"
    )
    against = ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    figure = f"v1_throughput_ratio_{served.name}"
    show(figure, rates["predictor"] / best_rate, "", f"limit 1.0; requests/s: {against}; {rest}")
    against = ", ".join(f"{name} {p99:.1f}" for name, p99 in p99s.items())
    figure = f"v1_p99_ratio_{served.name}"
    show(figure, p99s["predictor"] / best_p99, "", f"limit 1.5; ms: {against}; {rest}")


def load(address: str, body: Path, seconds: float, connections: int = CONNECTIONS) -> Load:
    """Sends one body again and again over several connections.

    Raises RuntimeError: a request failed.
    """
    if shutil.which("wrk"):
        script = body.with_suffix(".lua")
        script.write_text(_LUA.replace("BODY", str(body)))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
        command += ["--timeout", "60s", "-s", str(script), address]
    else:
        words = [address, str(body), str(seconds), str(connections)]
        command = [sys.executable, "-m", "benchmarks.serving.http_load", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    match = re.search(r"MEASURED (\S+) (\S+) (\d+)", run.stdout)
    if match is None or int(match[3]):
        raise RuntimeError(f"requests to {address} failed: {run.stdout}{run.stderr}")
    return Load(float(match[1]), float(match[2]))
