"""What Prometheus reads at `/metrics`: requests by protocol and status, the queue, the batches."""

from __future__ import annotations

import os

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from kfp_pytorch.serving.supervisor import SHARED_ENV

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

REQUESTS = Counter(
    "kfp_pytorch_requests", "Requests answered, by status", ["model_name", "protocol", "status"]
)
SECONDS = Histogram(
    "kfp_pytorch_request_seconds",
    "From a request's head to its answer",
    ["model_name", "protocol"],
    buckets=_SECONDS,
)
WAITING = Gauge(
    "kfp_pytorch_queue_requests",
    "Requests that wait for the model",
    ["model_name"],
    multiprocess_mode="livesum",
)
BATCH_ROWS = Histogram("kfp_pytorch_batch_rows", "Rows in a batch", ["model_name"], buckets=_ROWS)
BATCH_SECONDS = Histogram(
    "kfp_pytorch_batch_seconds",
    "What a batch took, with the copies to and from the device",
    ["model_name"],
    buckets=_SECONDS,
)


class Recorder:
    """Counts for one model; its metrics are looked up once, as that takes longer than counting."""

    def __init__(self, model_name: str) -> None:
        self._name = model_name
        self._seconds = {p: SECONDS.labels(model_name, p) for p in ("v1", "v2", "grpc", "explain")}
        self._requests: dict[tuple[str, str], Counter] = {}
        self._rows = BATCH_ROWS.labels(model_name)
        self._batch = BATCH_SECONDS.labels(model_name)
        self.waiting = WAITING.labels(model_name)

    def request(self, protocol: str, status: str, seconds: float) -> None:
        """Counts a request that was answered."""
        key = (protocol, status)
        if key not in self._requests:
            self._requests[key] = REQUESTS.labels(self._name, protocol, status)
        self._requests[key].inc()
        self._seconds[protocol].observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        """Counts a batch."""
        self._rows.observe(rows)
        self._batch.observe(seconds)


def page(accept: str) -> tuple[bytes, str]:
    """The metrics of all workers, and their content type."""
    registry = REGISTRY
    if SHARED_ENV in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
