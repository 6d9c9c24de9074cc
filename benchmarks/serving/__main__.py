"""Measures the predictor beside plain servers of the same model.

    python -m benchmarks.serving [PART ...]

Each part starts all servers that it compares and loads them in turn, several times, on loopback.
Parts and their figures:

- http: v1_throughput_ratio, v1_p99_ratio, over a bare FastAPI handler of the same export, the
  better of an `async def` and a `def` one, at 8 connections; of the small CNN for 8 x 8 digits, and
  of a ResNet-18 for 224 x 224 images. The load is made by wrk where it is installed.
- grpc: grpc_ratio, over KServe's default server with the same export, at 8 calls at once. The load
  is made by h2load where it is installed.
- overload: overload_goodput_ratio and others, at ten times the capacity for a minute, and after.
- gpu (where there is one): gpu_grpc_ratio, gpu_grpc_p99_ms, gpu_v1_ratio, gpu_jpeg_ratio: images a
  second of a ResNet-50 over those of the model alone at its best batch size, by raw uint8 images
  over gRPC, V1 JSON, and base64 JPEG; and what part of the time the GPU computed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import parser
from benchmarks.serving import gpu, grpc, http, overload

PARTS: dict[str, Callable[[Path, float], None]] = {
    "http": http.measure,
    "grpc": grpc.measure,
    "overload": overload.measure,
    "gpu": gpu.measure,
}
# How long a server is loaded at a time.
SECONDS = 4.0


def main() -> None:
    options = parser("benchmarks.serving", __doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    options.add_argument("--seconds", type=float, default=SECONDS, help="of each load")
    given = options.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        options.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder:
        for name in given.parts or PARTS:
            PARTS[name](Path(folder), given.seconds)


if __name__ == "__main__":
    main()
