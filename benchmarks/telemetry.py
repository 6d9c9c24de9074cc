"""What telemetry adds to a step on the host.

    python -m benchmarks.telemetry

It calls what the training loop calls, as often, with nothing in between, on a CPU: so this is
telemetry's own time, whatever the step takes. `telemetry_step_us` is of every step,
`telemetry_report_us` of a report (TensorBoard, Prometheus' page, memory and the gradients' norm of
the small CNN), and `telemetry_per_step_us` both, at a report every ten steps.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.figures import parser
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.faults.watchdog import Heartbeat
from kfp_pytorch.training.image.models import small_cnn
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.storage.job_folder import LocalFolder
from kfp_pytorch.training.telemetry.curves import History
from kfp_pytorch.training.telemetry.metrics import Progress, fetch
from kfp_pytorch.training.telemetry.reports import Telemetry
from kfp_pytorch.training.telemetry.step_measurements import StepMeasurements

LOG_EVERY = 10
ROUNDS, STEPS, REPORTS = 7, 10_000, 200


def measure() -> dict[str, float]:
    """The median times, in microseconds."""
    torch.set_num_threads(1)
    model = small_cnn(1, 10, 8)
    model(torch.randn(4, 1, 8, 8)).sum().backward()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        folder = LocalFolder(Path(scratch))
        config = Config()
        measurements = StepMeasurements(config, ALONE, folder, model, float, Heartbeat())
        with Telemetry(config, ALONE, folder, History(), Progress()) as telemetry:
            step = _median(STEPS, lambda number: _step(measurements, number))
            report = _median(REPORTS, lambda number: _report(measurements, telemetry, number))
    return {
        "telemetry_step_us": round(step, 2),
        "telemetry_report_us": round(report, 1),
        "telemetry_per_step_us": round(step + report / LOG_EVERY, 1),
    }


def _step(measurements: StepMeasurements, number: int) -> None:
    measurements.before_step(number)
    measurements.after_backward()
    measurements.after_step(number)


def _report(measurements: StepMeasurements, telemetry: Telemetry, number: int) -> None:
    values = {"train_loss": 1.0, "lr": 0.1, "samples_per_second": 1e3}
    ((norm,),) = fetch(ALONE.device, measurements.last_norm())
    telemetry.report(1, number, *measurements.read(values, norm))


def _median(count: int, action: Callable[[int], None]) -> float:
    """Microseconds of one call, the median of some rounds."""
    rounds = []
    for _round in range(ROUNDS):
        start = time.perf_counter()
        for number in range(1, count + 1):
            action(number)
        rounds.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(rounds)


if __name__ == "__main__":
    parser("benchmarks.telemetry", __doc__).parse_args()
    print(json.dumps(measure()))
