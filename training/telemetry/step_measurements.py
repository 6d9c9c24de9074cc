"""What is measured of steps beside their loss: time, memory, gradients, use of the GPU.

Nothing here waits for the device. What needs its answer is read when a report is due, which has
waited for the loss already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.arguments.profile_request import read_profile_request
from kfp_pytorch.training.faults import nonfinite_steps
from kfp_pytorch.training.faults.watchdog import Heartbeat
from kfp_pytorch.training.parallel.process_group import World
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry import memory, step_times
from kfp_pytorch.training.telemetry.flops import peak_flops, utilisation
from kfp_pytorch.training.telemetry.profiling import Profiler
from kfp_pytorch.training.telemetry.step_times import StepTimer


class Instruments:
    """Looks on while a model is trained; see the module."""

    def __init__(
        self,
        config: Config,
        world: World,
        folder: Folder,
        model: nn.Module,
        flops: Callable[[], float],
        heartbeat: Heartbeat,
    ) -> None:
        """Gets ready.

        Args:
            config: What is to be traced.
            world: This rank.
            folder: The job's folder.
            model: The model, unwrapped.
            flops: Counts the operations of forward and backward that one sample asks for.
            heartbeat: What is told how far this rank is.
        """
        self._world = world
        self._heartbeat = heartbeat
        self._model = model
        self._flops = flops() if _knows_peak(world.device) else 0.0
        self._norm: Tensor | None = None
        self._timer = StepTimer(world.device)
        if world.size > 1:
            self._timer.watch_exchange(model)
        request = read_profile_request(config.profile_steps, config.profile_ranks)
        self._profiler = Profiler(request, world, folder)

    def start(self, step: int) -> None:
        """Says that a row of steps begins, with this one."""
        self._timer.start()
        self._heartbeat.waiting(step)

    def before_step(self, step: int) -> None:
        """Says that a step's samples are there, and it begins to compute."""
        self._timer.mark(step_times.DATA)
        self._heartbeat.computing(step)
        self._profiler.before(step)

    def after_backward(self) -> None:
        """Says that all gradients of a step are there."""
        self._timer.mark(step_times.COMPUTE)

    def gradient_norm(self, norm: Tensor) -> None:
        """Takes in the norm of a step's gradients, where the step knows it and drops them."""
        self._norm = norm

    def after_step(self, step: int) -> None:
        """Says that a step has ended."""
        self._timer.mark(step_times.OPTIMIZER)
        self._profiler.after(step)
        self._heartbeat.waiting(step + 1)

    def evaluating(self, step: int, batch: int) -> None:
        """Says how many batches of an evaluation are done."""
        self._heartbeat.evaluating(step, batch)

    def rest(self) -> None:
        """Says that neither steps nor an evaluation are under way."""
        self._heartbeat.rest()

    def close(self) -> None:
        """Waits for what is still written of it."""
        self._profiler.close()

    def last_norm(self) -> Tensor:
        """The norm of the last step's gradients, which are averaged over ranks by now."""
        if self._norm is not None:
            return self._norm
        return nonfinite_steps.gradient_norm(self._model)

    def read(
        self, values: Mapping[str, float], norm: float
    ) -> tuple[dict[str, float], dict[str, float]]:
        """What was measured since the last report.

        Args:
            values: What a report has already, such as `samples_per_second` of all ranks.
            norm: The number of `last_norm`.

        Returns:
            The report, with `mfu` where it is known, and what is too much for the log: seconds of
            each phase of a step, gigabytes of memory, the gradients' norm.
        """
        report = dict(values)
        if self._flops and "samples_per_second" in values:
            rate = values["samples_per_second"] / self._world.size
            card = torch.cuda.get_device_name(self._world.device)
            mfu = utilisation(rate, self._flops, card)
            report |= {} if mfu is None else {"mfu": mfu}
        times = {step_times.TIMES + name: value for name, value in self._timer.take().items()}
        return report, {
            **times,
            **memory.memory(self._world.device),
            "gradient_norm": norm,
        }


def _knows_peak(device: torch.device) -> bool:
    return device.type == "cuda" and peak_flops(torch.cuda.get_device_name(device)) is not None
