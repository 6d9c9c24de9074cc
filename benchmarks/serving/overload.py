"""Ten times the requests that the predictor can answer, for a minute: what it sheds, and after."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.figures import machine, percentile, show
from benchmarks.serving import http
from benchmarks.serving.models import RESNET18
from benchmarks.serving.processes import NAME, Started, predictor, running

TIMES, SECONDS = 10, 60.0
# A client that is refused asks again after a second, as it is told.
_TIMEOUT_SECONDS = 30.0


@dataclass
class Seen:
    """What clients saw."""

    taken: dict[str, list[float]] = field(default_factory=dict)  # seconds, by status

    def add(self, status: str, seconds: float) -> None:
        self.taken.setdefault(status, []).append(seconds)

    def count(self, status: str) -> int:
        return len(self.taken.get(status, []))


def measure(folder: Path, seconds: float) -> None:
    body = folder / "overload.json"
    body.write_text(json.dumps({"instances": [_jpeg()]}))
    options = ("--max_waiting=32", "--timeout_s=20")
    with running({"predictor": predictor(RESNET18.write(folder), *options)}) as servers:
        server = servers["predictor"]
        http.load(server.predict, body, 2.0)
        capacity = http.load(server.predict, body, 2 * seconds).rate
        before = _memory(server)
        seen, probes = asyncio.run(_flood(server.port, body.read_bytes(), TIMES * capacity))
        began = time.perf_counter()
        http.load(server.predict, body, 1.0, connections=1)
        recovered = time.perf_counter() - began - 1.0
        after = http.load(server.predict, body, 2 * seconds).rate
        grown = (_memory(server) - before) / 2**20
    sent = sum(map(len, seen.taken.values()))
    statuses = ", ".join(f"{status}: {len(each)}" for status, each in sorted(seen.taken.items()))
    about = f"{TIMES} × {capacity:.0f} requests/s for {SECONDS:g} s; {statuses}; {machine()}"
    show("overload_other_answers", sent - seen.count("200") - seen.count("503"), "", about)
    goodput = seen.count("200") / SECONDS
    show("overload_goodput_ratio", goodput / capacity, "", f"{goodput:.1f} requests/s; {about}")
    for status in ("200", "503"):
        if seen.count(status):
            p99 = percentile(seen.taken[status], 0.99)
            show(f"overload_{status}_p99_s", p99, "s", about)
    show("overload_health_p99_s", percentile(probes, 0.99), "s", about)
    show("overload_grown_mb", grown, "MB", "the largest resident size, over that before")
    show("overload_recovered_s", max(0.0, recovered), "s", "until an answer, of one client")
    show("overload_rate_after", after / capacity, "", f"{after:.0f} requests/s; {machine()}")


async def _flood(port: int, body: bytes, rate: float) -> tuple[Seen, list[float]]:
    """Sends requests at a rate whether or not they are answered, and asks for health."""
    seen, probes, tasks = Seen(), list[float](), set[asyncio.Task[None]]()
    began = time.perf_counter()
    until = began + SECONDS
    prober = asyncio.create_task(_probe(port, probes, until))
    count = 0
    while time.perf_counter() < until:
        due = int((time.perf_counter() - began) * rate) - count
        for _ in range(due):
            task = asyncio.create_task(_request(port, body, seen))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        count += due
        await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    await prober
    return seen, probes


async def _request(port: int, body: bytes, seen: Seen) -> None:
    head = f"POST /v1/models/{NAME}:predict HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            status = await _answered(port, head.encode() + body)
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        status = type(error).__name__
    seen.add(status, time.perf_counter() - began)


async def _probe(port: int, probes: list[float], until: float) -> None:
    request = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    while (began := time.perf_counter()) < until:
        if await _answered(port, request) != "200":
            raise RuntimeError("it was not live")
        probes.append(time.perf_counter() - began)
        await asyncio.sleep(0.1)


async def _answered(port: int, request: bytes) -> str:
    """The status of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        line = await reader.readline()
        await reader.read()
    finally:
        writer.close()
    match = re.match(rb"HTTP/1.1 (\d+)", line)
    return match[1].decode() if match else "closed"


def _memory(server: Started) -> int:
    """The largest resident size so far, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
    assert match is not None
    return int(match[1]) * 1024


def _jpeg() -> dict[str, str]:
    from PIL import Image

    small = np.random.default_rng(0).integers(0, 256, (14, 14, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((224, 224)).save(file, "JPEG", quality=90)
    return {"b64": base64.b64encode(file.getvalue()).decode()}
