"""Losses and accuracies of training and evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.parallel.process_group import World, sum_over_ranks

_MOST_CONFUSED = 1000


class LossMeter:
    """The mean training loss since the last report, kept on the device until one is due."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sums = torch.zeros(2, dtype=torch.float64, device=world.device)

    def add(self, loss: Tensor, count: int) -> None:
        """Adds a step's mean loss, on the device; one that is not finite is left out."""
        if not count:
            return
        value = loss.detach().double()
        both = torch.stack([value * count, torch.full_like(value, count)])
        self._sums += torch.where(torch.isfinite(value), both, 0.0)

    def state(self) -> list[float]:
        """Sum and count over all ranks, for a checkpoint."""
        totals: list[float] = self._totals().tolist()
        return totals

    def local(self) -> list[float]:
        """Sum and count of this rank alone."""
        sums: list[float] = self._sums.tolist()
        return sums

    def restore(self, state: list[float]) -> None:
        """Restores the sum and count of a checkpoint."""
        restored = state if self._world.is_main else [0.0, 0.0]
        self._sums = torch.tensor(restored, dtype=torch.float64, device=self._world.device)

    def take(self) -> Tensor:
        """Sum and count over all ranks since the last call, for `mean_loss`; on the device."""
        totals = self._totals()
        self._sums.zero_()
        return totals

    def _totals(self) -> Tensor:
        return sum_over_ranks(self._world, self._sums.clone())


def mean_loss(totals: Sequence[float]) -> float | None:
    """The mean loss, from the sum and count of `LossMeter.take`; None if there was no step."""
    total, count = totals
    return total / count if count else None


def fetch(device: torch.device, *tensors: Tensor) -> list[list[float]]:
    """The numbers of small tensors as float64, which waits for the device only once."""
    flat = [tensor.detach().reshape(-1).to(device, torch.float64) for tensor in tensors]
    numbers = iter(torch.cat(flat).tolist())
    return [list(itertools.islice(numbers, len(values))) for values in flat]


class Evaluation:
    """Loss and accuracy over all ranks, each sample counted once."""

    def __init__(self, world: World, classes: int) -> None:
        self._world = world
        self._classes = classes
        # Its size is the square of the number of classes.
        size = classes**2 if classes <= _MOST_CONFUSED else 0
        self._confused = torch.zeros(size, dtype=torch.int64, device=world.device)
        self._sums = torch.zeros(3, dtype=torch.float64, device=world.device)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Adds the logits of a batch; it may be empty."""
        loss = functional.cross_entropy(logits.float(), labels, reduction="sum")
        predicted = logits.argmax(dim=1)
        correct = (predicted == labels).sum()
        count = torch.full_like(loss, len(labels))
        self._sums += torch.stack([loss.double(), correct.double(), count.double()])
        if len(self._confused):
            # Not bincount, which waits for the device.
            cell = labels * self._classes + predicted
            self._confused.scatter_add_(0, cell, torch.ones_like(cell))

    def confusion(self) -> Tensor | None:
        """The confusion matrix: true classes by row, predicted by column; None for many classes."""
        if not len(self._confused):
            return None
        total = sum_over_ranks(self._world, self._confused)
        return total.view(self._classes, self._classes)

    def result(self) -> dict[str, float]:
        """`loss` and `accuracy` over all ranks. Raises DataError: there was no sample."""
        loss, correct, count = sum_over_ranks(self._world, self._sums).tolist()
        if not count:
            raise DataError("no held-out image can be decoded, and there is nothing to evaluate on")
        return {"loss": loss / count, "accuracy": correct / count}


@dataclass
class Progress:
    """How far a job is."""

    epoch: int = 0  # epochs that are done, their evaluation included
    samples: int = 0  # samples of the current epoch that are done, over all ranks
    step: int = 0  # steps that are done since the job's first
