"""What is measured of steps beside their loss: time, memory, gradients, use of the GPU.

Nothing here waits for the device. What needs its answer is read when a report is due, which has
waited for the loss already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.arguments.profile_request import read_profile_request
from kfp_pytorch.training.faults import nonfinite_steps
from kfp_pytorch.training.faults.watchdog import Heartbeat
from kfp_pytorch.training.parallel.process_group import World
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry import step_times
from kfp_pytorch.training.telemetry.flops import peak_flops, utilisation
from kfp_pytorch.training.telemetry.profiling import Profiler
from kfp_pytorch.training.telemetry.step_times import StepTimer

_GB = 1e9
_STATM = Path("/proc/self/statm")


class StepMeasurements:
    """Measures while a model is trained; see the module."""

    def __init__(
        self,
        config: Config,
        world: World,
        folder: Folder,
        model: nn.Module,
        flops: Callable[[], float],
        heartbeat: Heartbeat,
    ) -> None:
        """Starts with nothing measured; `flops` counts the operations of one sample."""
        self._world = world
        self._heartbeat = heartbeat
        self._model = model
        self._card = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else ""
        self._flops = flops() if peak_flops(self._card) is not None else 0.0
        self._norm: Tensor | None = None
        self._timer = StepTimer(world.device)
        if world.size > 1:
            self._timer.watch_exchange(model)
        request = read_profile_request(config.profile_steps, config.profile_ranks)
        self._profiler = Profiler(request, world, folder)

    def start(self, step: int) -> None:
        """A row of steps begins, with this one."""
        self._timer.start()
        self._heartbeat.waiting(step)

    def before_step(self, step: int) -> None:
        """A step has its samples, and begins to compute."""
        self._timer.mark(step_times.DATA)
        self._heartbeat.computing(step)
        self._profiler.before(step)

    def after_backward(self) -> None:
        """All gradients of a step are there."""
        self._timer.mark(step_times.COMPUTE)

    def gradient_norm(self, norm: Tensor) -> None:
        """Keeps the norm of a step's gradients, where the step computes it and drops them."""
        self._norm = norm

    def after_step(self, step: int) -> None:
        """A step has ended."""
        self._timer.mark(step_times.OPTIMIZER)
        self._profiler.after(step)
        self._heartbeat.waiting(step + 1)

    def evaluating(self, step: int, batch: int) -> None:
        """So many batches of an evaluation are done."""
        self._heartbeat.evaluating(step, batch)

    def idle(self) -> None:
        """Neither steps nor an evaluation are running."""
        self._heartbeat.idle()

    def close(self) -> None:
        """Waits until all traces are written."""
        self._profiler.close()

    def last_norm(self) -> Tensor:
        """The norm of the last step's gradients, averaged over ranks."""
        if self._norm is not None:
            return self._norm
        return nonfinite_steps.gradient_norm(self._model)

    def read(
        self, values: Mapping[str, float], norm: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Returns what was measured since the last report, with `mfu` where it is known.

        Details are too much for the log: seconds of each phase of a step, gigabytes of memory, the
        gradients' norm. `values`: of the report, such as `samples_per_second`; `norm`: that of
        `last_norm`.
        """
        report = dict(values)
        if self._flops and "samples_per_second" in values:
            rate = values["samples_per_second"] / self._world.size
            mfu = utilisation(rate, self._flops, self._card)
            report |= {} if mfu is None else {"mfu": mfu}
        times = {step_times.TIMES + name: value for name, value in self._timer.take().items()}
        return report, {**times, **_memory(self._world.device), "gradient_norm": norm}


def _memory(device: torch.device) -> dict[str, float]:
    """The memory of this process in GB (10^9 bytes): on the GPU its peak since the last call."""
    values: dict[str, float] = {}
    if _STATM.exists():
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
        values["host_memory_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / _GB
    if device.type == "cuda":
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        values["gpu_memory_gb"] = stats["allocated_bytes"]["all"]["peak"] / _GB
        values["gpu_reserved_gb"] = stats["reserved_bytes"]["all"]["current"] / _GB
        torch.cuda.reset_peak_memory_stats(device)
    return values
