"""Pipeline parallelism: each rank holds some of the blocks, and microbatches pass through them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the blocks of a stage: as even as possible, the first stages have one more."""
    each, left = divmod(layers, stages)
    start = stage * each + min(stage, left)
    return range(start, start + each + (stage < left))


class Pipeline:
    """Runs a rank's stage under the 1F1B schedule.

    `stage`: the stage, wrapped for data parallelism as the plan says. It takes the tokens or the
    residual stream, and the last one `targets` too, and then returns the mean loss.
    """

    def __init__(
        self, stage: nn.Module, microbatches: int, group: dist.ProcessGroup, device: torch.device
    ) -> None:
        # It brings torch's compiler, which takes the other plans half a second at their start.
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        rank, size = group.rank(), group.size()
        self._first, self._last = rank == 0, rank == size - 1
        self._device = device
        self._schedule = Schedule1F1B(
            PipelineStage(stage, rank, size, device, group=group),
            n_microbatches=microbatches,
            loss_fn=lambda loss, _targets: loss,
        )

    def train(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Run forward and backward; the mean loss on the last stage, zero on the others."""
        return self._run(self._schedule.step, tokens, targets)

    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Run forward alone; otherwise like `train`."""
        with torch.no_grad():
            return self._run(self._schedule.eval, tokens, targets)

    def _run(self, run: Callable[..., object], tokens: Tensor, targets: Tensor) -> Tensor:
        args = (tokens,) if self._first else ()
        if not self._last:
            run(*args, return_outputs=False)
            return torch.zeros((), device=self._device)
        losses: list[Tensor] = []
        run(*args, target=targets, targets=targets, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().detach()
