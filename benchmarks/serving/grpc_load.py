"""A load of gRPC requests in a process of its own.

    python -m benchmarks.serving.grpc_load ADDRESS REQUEST SECONDS CALLS

REQUEST is a file with a serialized ModelInferRequest. Nothing is serialized here, so this takes
as little of the machine as Python can.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from grpc import aio

from benchmarks.figures import percentile

METHOD = "/inference.GRPCInferenceService/ModelInfer"


async def load(address: str, request: bytes, seconds: float, calls: int) -> None:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    taken: list[float] = []

    async def caller(until: float) -> None:
        # A connection each, as of as many clients.
        own = [*options, ("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(address, own) as channel:
            call = channel.unary_unary(METHOD)
            while (began := time.perf_counter()) < until:
                await call(request, timeout=60)
                taken.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller(began + seconds) for _ in range(calls)))
    rate = len(taken) / (time.perf_counter() - began)
    print(f"MEASURED {rate} {percentile(taken, 0.99) * 1000} 0")


if __name__ == "__main__":
    where, file, time_s, count = sys.argv[1:]
    asyncio.run(load(where, Path(file).read_bytes(), float(time_s), int(count)))
