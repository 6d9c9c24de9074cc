"""Losses and gradients that are no finite numbers: found without waiting for the device in a step.

What is found stays on the device until a report or a checkpoint is due. By then training either
stops, before anything bad is kept, or the steps were skipped as they came: then weights, optimizer
and batch norm are as if the step had not been.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kfp_pytorch.training.parallel.process_group import World

_NONE = 2**62


class Steps(Protocol):
    """What takes a step: an optimizer, or what limits gradients before it."""

    def step(self) -> object:
        """Updates the weights."""


class Guard(Protocol):
    """Takes the optimizer's steps, and knows which were bad.

    Attributes:
        allowed: How many bad steps there may be.
        count: How many were found so far.
    """

    allowed: int
    count: int

    def step(self, number: int, loss: Tensor) -> None:
        """Takes a step of the optimizer, unless it is bad and can be skipped.

        Args:
            number: The step's number.
            loss: The loss of this rank's samples, on the device.
        """

    def places(self) -> Tensor:
        """What `found` has to know, on the device; all ranks call this together."""

    def found(self, places: Sequence[float]) -> list[tuple[int, int]]:
        """The bad steps since the last call, each with the first rank where it was.

        Args:
            places: The numbers of `places`.
        """


def open_guard(
    world: World, model: nn.Module, optimizer: torch.optim.Optimizer, allowed: int
) -> Guard:
    """The guard of a run.

    Args:
        world: This rank.
        model: What is trained, unwrapped.
        optimizer: What trains it, as it goes on from a checkpoint.
        allowed: How many bad steps are skipped; with 0 the first one is the last.
    """
    if allowed:
        return Skipper(world, model, optimizer, allowed)
    return Stopper(world, optimizer)


class Stopper:
    """Keeps in mind the first bad loss; see `Guard`."""

    allowed = 0

    def __init__(self, world: World, optimizer: Steps) -> None:
        self.count = 0
        self._world = world
        self._optimizer = optimizer
        self._first = torch.full((1,), _NONE, dtype=torch.int64, device=world.device)

    def step(self, number: int, loss: Tensor) -> None:
        """See `Guard.step`."""
        place = number * self._world.size + self._world.rank
        here = torch.where(torch.isfinite(loss), _NONE, place)
        self._first = torch.minimum(self._first, here)
        self._optimizer.step()

    def places(self) -> Tensor:
        """See `Guard.places`."""
        return _common(self._world, self._first)

    def found(self, places: Sequence[float]) -> list[tuple[int, int]]:
        """See `Guard.found`."""
        steps = _steps(self._world, places)
        self.count = len(steps)
        return steps


class Skipper:
    """Skips bad steps on all ranks alike; see `Guard`.

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
        """Keeps what a bad step would change.

        Args:
            world: This rank.
            model: What is trained.
            optimizer: What trains it, as it goes on from a checkpoint.
            allowed: How many bad steps are skipped.
            norm: Tells the norm of all gradients, and may limit them; by default that of the
                model's own.
        """
        self.allowed = allowed
        self.count = 0
        self._world = world
        self._optimizer = optimizer
        self._norm = norm or functools.partial(gradient_norm, model)
        # Others, such as tables, do not change.
        carried = model.state_dict().keys()
        self._buffers = [buffer for name, buffer in model.named_buffers() if name in carried]
        self._kept = [buffer.clone() for buffer in self._buffers]
        self._fused = all(group.get("fused") for group in optimizer.param_groups)
        if self._fused:
            _make_momentum(optimizer)
        self._seen = torch.zeros(1, dtype=torch.int64, device=world.device)
        # One place more than may be filled, so that the step that is too much has a name.
        self._places = torch.full((allowed + 1,), _NONE, dtype=torch.int64, device=world.device)

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
        place = number * self._world.size + self._world.rank
        index = self._seen.clamp(max=self.allowed)
        before = self._places.gather(0, index)
        here = torch.where(mine, place, _NONE).reshape(1)
        self._places.scatter_(0, index, torch.minimum(before, here))
        self._seen += bad.to(torch.int64)

    def places(self) -> Tensor:
        """See `Guard.places`."""
        return _common(self._world, self._places)

    def found(self, places: Sequence[float]) -> list[tuple[int, int]]:
        """See `Guard.found`."""
        steps = _steps(self._world, places)
        fresh, self.count = steps[self.count :], len(steps)
        return fresh

    def _update(self, bad: Tensor) -> None:
        if not self._fused:
            # On a CPU there is nothing to wait for; a GPU without a fused optimizer is waited for.
            if not bad.item():
                self._optimizer.step()
            return
        # What torch's GradScaler does: the kernel itself looks whether it should do anything.
        self._optimizer.found_inf = bad  # type: ignore[attr-defined]
        self._optimizer.step()
        del self._optimizer.found_inf  # type: ignore[attr-defined]


def _common(world: World, places: Tensor) -> Tensor:
    """The first of what the ranks keep in each place."""
    common = places.clone()
    if world.size > 1:
        dist.all_reduce(common, op=dist.ReduceOp.MIN)
    return common


def _steps(world: World, places: Sequence[float]) -> list[tuple[int, int]]:
    """Steps and ranks by what is kept in these places."""
    return [divmod(int(place), world.size) for place in places if place != _NONE]


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
