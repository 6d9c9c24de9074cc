"""Metrics for Prometheus: how far the job is, how fast, and how old its checkpoint is.

The first process of each node serves them. They cost the update of a dictionary in each report, and
nothing in a step.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kfp_pytorch.training.telemetry.step_times import TIMES

LOG = logging.getLogger("kfp_pytorch.training")
PREFIX = "kfp_pytorch_"
_HELPS = {
    "train_loss": "Mean training loss since the report before",
    "loss": "Loss on the held-out samples",
    "accuracy": "Accuracy on the held-out samples, 0 to 1",
    "lr": "Learning rate",
    "samples_per_second": "Samples that all ranks together train on in a second",
    "mfu": "Model FLOPs utilisation of one GPU, 0 to 1",
    "gradient_norm": "Global norm of the gradients at the last report",
    "gpu_memory_gb": "Highest GPU memory of this process in use since the report before, in GB",
    "gpu_reserved_gb": "GPU memory that this process holds, in GB",
    "host_memory_gb": "Resident memory of this process, in GB",
    "skipped_steps": "Steps that were skipped because their loss was not finite",
}


class Exporter(Collector):
    """Serves the metrics until the process ends."""

    def __init__(self, port: int, position: Callable[[], tuple[int, int]], starts: int) -> None:
        """Serves at `port`, 0 for any free one; logs a warning if it is in use."""
        self.port = port
        self._position = position
        self._starts = starts
        self._values: dict[str, float] = {}
        self._saved = time.time()
        registry = CollectorRegistry()
        registry.register(self)
        try:
            # All addresses, also of IPv6: Prometheus connects from another pod.
            address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
            server, _thread = start_http_server(port, address, registry)
        except OSError as error:
            LOG.warning(
                "there are no metrics for Prometheus: port %s cannot be listened on (%s); give "
                "another with --metrics-port",
                *(port, error.strerror or error),
            )
            return
        self.port = server.server_address[1]
        LOG.info("metrics for Prometheus at port %s, path /metrics", self.port)

    def report(self, values: Mapping[str, float]) -> None:
        """Takes values by name; the last value of each name is served."""
        self._values = {**self._values, **values}

    def checkpoint_saved(self) -> None:
        """A checkpoint is complete."""
        self._saved = time.time()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The metrics, at each request."""
        epoch, step = self._position()
        yield _gauge("epoch", "Epochs that are done", epoch)
        yield _gauge("step", "Steps that are done since the job's first", step)
        yield _gauge("restarts", "How often the job was started before", self._starts)
        age = time.time() - self._saved
        text = "Seconds since the last checkpoint was complete, or since the start before the first"
        yield _gauge("checkpoint_age_seconds", text, age)
        phases = GaugeMetricFamily(
            f"{PREFIX}step_seconds", "Mean time of a step by phase", labels=["phase"]
        )
        for name, value in self._values.items():
            if name.startswith(TIMES):
                phases.add_metric([name.removeprefix(TIMES)], value)
            elif name in _HELPS and math.isfinite(value):
                yield _gauge(name, _HELPS[name], value)
        yield phases


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)
