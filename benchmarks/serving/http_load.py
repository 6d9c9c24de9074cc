"""A load of HTTP requests in a process of its own, where wrk is not installed.

python -m benchmarks.serving.http_load ADDRESS BODY SECONDS CONNECTIONS
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import percentile


async def connection(
    host: str, port: int, request: bytes, until: float, taken: list[float]
) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=2**24)
    while (began := time.perf_counter()) < until:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split(None, 1)[0])
        await reader.readexactly(length)
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise SystemExit(f"answered with {head!r}")
        taken.append(time.perf_counter() - began)
    writer.close()


async def load(address: str, body: bytes, seconds: float, connections: int) -> None:
    parts = urlsplit(address)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    taken: list[float] = []
    began = time.perf_counter()
    every = [connection(host, port, request, began + seconds, taken) for _ in range(connections)]
    await asyncio.gather(*every)
    rate = len(taken) / (time.perf_counter() - began)
    print(f"MEASURED {rate} {percentile(taken, 0.99) * 1000} 0")


if __name__ == "__main__":
    where, file, time_s, count = sys.argv[1:]
    asyncio.run(load(where, Path(file).read_bytes(), float(time_s), int(count)))
