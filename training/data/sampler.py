"""The samples of each rank in each step: a function of seed, epoch and position alone.

torch's DistributedSampler repeats samples to make the shards even, and cannot start in the middle
of an epoch. Here every sample occurs once per epoch, all ranks take the same number of steps, and
an epoch can resume at any step, with another number of ranks too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# The fewest samples of which batch norm computes a mean and a variance.
_LEAST_FOR_BATCH_NORM = 8


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch."""

    indices: Tensor  # the samples of this rank
    count: int  # how many of them, from the first, count in the loss; others are for batch norm
    global_size: int  # the samples of all ranks together
    start: int  # how many samples of the epoch came before this global batch


class DistributedBatchSampler:
    """The batches of one rank, epoch by epoch; see `set_epoch`."""

    def __init__(
        self, samples: int, rank: int, world_size: int, batch_size: int, seed: int, block: int = 1
    ) -> None:
        """Sets the sampler to epoch 0; `block` neighbours stay together in any order."""
        self.samples = samples
        self.rank = rank
        self.world_size = world_size
        self.batch_size = batch_size
        self.seed = seed
        # A larger block would take memory for samples that do not exist.
        self.block = min(block, samples)
        self.set_epoch(0)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Sets the epoch, and how many of its samples are done already."""
        self.epoch = epoch
        self.start = start

    def __len__(self) -> int:
        """The number of steps that are left in the epoch, the same on all ranks."""
        return len(self._sizes())

    def __iter__(self) -> Iterator[Batch]:
        return self.of_rank(self.rank)

    def of_rank(self, rank: int) -> Iterator[Batch]:
        """The batches of any rank."""
        order = self.order()
        done = self.start
        for size in self._sizes():
            # In one piece, so that a rank reads neighbours together.
            own = order[done : done + size].tensor_split(self.world_size)[rank]
            yield Batch(self._filled(own, order), len(own), size, done)
            done += size

    def order(self) -> Tensor:
        """The order of all samples in this epoch, over all ranks."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        blocks = torch.randperm(-(-self.samples // self.block), generator=generator)
        order = (blocks[:, None] * self.block + torch.arange(self.block)).flatten()
        # The last block may be smaller.
        return order[order < self.samples]

    @property
    def _least(self) -> int:
        """How many samples of a batch a rank needs.

        Batch norm needs several: one value has no variance, and with two values, where images have
        shrunk to a pixel, gradients are huge rounding errors.
        """
        return min(_LEAST_FOR_BATCH_NORM, self.batch_size)

    def _filled(self, own: Tensor, order: Tensor) -> Tensor:
        """A rank's samples, and others after them if they are too few for batch norm.

        That happens when few samples are left in a resumed epoch, with no batch before to join.
        """
        missing = self._least - len(own)
        if missing <= 0:
            return own
        return torch.cat([own, order[~torch.isin(order, own)][:missing]])

    def _sizes(self) -> list[int]:
        """Sizes of the global batches left; one too small for all ranks joins the one before."""
        full = self.batch_size * self.world_size
        left = self.samples - self.start
        sizes = [full] * (left // full)
        rest = left % full
        if rest and (rest >= self._least * self.world_size or not sizes):
            sizes.append(rest)
        elif rest:
            sizes[-1] += rest
        return sizes


def evaluation_shards(samples: int, rank: int, world_size: int, batch_size: int) -> list[Tensor]:
    """Splits samples over ranks, each exactly once, in the same number of batches on all ranks.

    Returns the indices of each of this rank's batches; the last one may be empty.
    """
    full = batch_size * world_size
    return [
        torch.arange(start, min(start + full, samples))[rank::world_size]
        for start in range(0, samples, full)
    ]
