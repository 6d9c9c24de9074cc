"""Finds losses and gradients that are not finite, without waiting for the device in a step.

What is found stays on the device until a report or a checkpoint is due. Then training either stops,
before anything bad is saved, or the bad steps were skipped when they came: weights, optimizer and
batch norm are as if the step had not been.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kfp_pytorch.training.parallel.process_group import World

LOG = logging.getLogger("kfp_pytorch.training")
_NONE = 2**62


class Guard:
    """Takes the optimizer's steps, and records the bad ones.

    A bad step is kept as one number on the device: the step's number times the ranks, plus the
    rank. `allowed`: how many there may be; `count`: how many were found so far.
    """

    def __init__(self, world: World, allowed: int) -> None:
        self.allowed = allowed
        self.count = 0
        self._world = world
        # One more than may be skipped, so that the step that is too many is known.
        self._bad = torch.full((allowed + 1,), _NONE, dtype=torch.int64, device=world.device)

    def step(self, number: int, loss: Tensor) -> None:
        """Takes a step of the optimizer, unless it is bad and can be skipped."""
        raise NotImplementedError

    def bad_steps(self) -> Tensor:
        """The bad steps of all ranks, on the device, for `why_stop`; all ranks call this."""
        common = self._bad.clone()
        if self._world.size > 1:
            dist.all_reduce(common, op=dist.ReduceOp.MIN)
        return common

    def why_stop(self, bad_steps: Sequence[float], batch_of: Callable[[int, int], str]) -> str:
        """Why training must stop: there were more bad steps than may be skipped; or empty.

        Logs those that were skipped since the last call. `bad_steps`: from the method of that
        name, on the host. `batch_of`: describes what a rank computed in a step.
        """
        found = [divmod(int(number), self._world.size) for number in bad_steps if number != _NONE]
        before, self.count = self.count, len(found)
        for number, (step, rank) in enumerate(found[before:], before + 1):
            words = f"the loss of step {step} is not a finite number: {batch_of(step, rank)}"
            if number > self.allowed:
                skipped = f", and {self.allowed} steps were skipped before" if self.allowed else ""
                return words + skipped
            LOG.warning("skipped step %s of at most %s: %s", number, self.allowed, words)
        return ""

    def _number(self, step: int) -> int:
        return step * self._world.size + self._world.rank


def open_guard(
    world: World, model: nn.Module, optimizer: torch.optim.Optimizer, allowed: int
) -> Guard:
    """The guard of a run; `allowed`: how many bad steps are skipped; 0 stops at the first."""
    if allowed:
        return Skipper(world, model, optimizer, allowed)
    return Stopper(world, optimizer.step)


class Stopper(Guard):
    """Records the first bad loss, and takes every step."""

    def __init__(self, world: World, update: Callable[[], object]) -> None:
        super().__init__(world, 0)
        self._update = update

    def step(self, number: int, loss: Tensor) -> None:
        """See `Guard.step`."""
        here = torch.where(torch.isfinite(loss), _NONE, self._number(number))
        self._bad = torch.minimum(self._bad, here)
        self._update()


class Skipper(Guard):
    """Skips bad steps on all ranks alike.

    Each step costs the norm of the gradients, a copy of batch norm's averages and an exchange of
    one number.
    """

    def __init__(
        self,
        world: World,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        allowed: int,
        norm: Callable[[], Tensor] | None = None,
    ) -> None:
        """Copies what a bad step would change; `optimizer` has the state that the run resumes from.

        `norm`: returns the norm of all gradients, and may clip them; by default the model's own.
        """
        super().__init__(world, allowed)
        self._optimizer = optimizer
        self._norm = norm or functools.partial(gradient_norm, model)
        # Buffers that are not saved, such as tables, do not change.
        saved = model.state_dict().keys()
        self._buffers = [buffer for name, buffer in model.named_buffers() if name in saved]
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._fused = all(group.get("fused") for group in optimizer.param_groups)
        if self._fused:
            _make_momentum(optimizer)
        self._seen = torch.zeros(1, dtype=torch.int64, device=world.device)

    def step(self, number: int, loss: Tensor) -> None:
        """See `Guard.step`."""
        mine = ~(torch.isfinite(loss) & torch.isfinite(self._norm()))
        bad = mine.to(torch.float32).reshape(())
        if self._world.size > 1:
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        self._update(bad)
        is_bad = bad > 0
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            buffer.copy_(torch.where(is_bad, kept, buffer))
            kept.copy_(buffer)
        index = self._seen.clamp(max=self.allowed)
        before = self._bad.gather(0, index)
        here = torch.where(mine, self._number(number), _NONE).reshape(1)
        self._bad.scatter_(0, index, torch.minimum(before, here))
        self._seen += bad.to(torch.int64)

    def _update(self, bad: Tensor) -> None:
        if not self._fused:
            # This waits for a GPU, and for nothing on a CPU.
            if not bad.item():
                self._optimizer.step()
            return
        # As torch's GradScaler does: the kernel itself checks whether to update anything.
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        self._optimizer.step()
        del self._optimizer.found_inf  # type: ignore[attr-defined]


def gradient_norm(model: nn.Module) -> Tensor:
    """The norm of all gradients that a model has, on the device."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def _make_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Starts SGD's momentum from zero: torch leaves it unset in a first step that is skipped."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("momentum") else []:
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)
