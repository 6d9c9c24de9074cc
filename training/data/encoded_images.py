"""Data sets of image files that are decoded when needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kfp_pytorch.training.data import datasets, decode
from kfp_pytorch.training.data.augment import View, centre_view
from kfp_pytorch.training.data.datasets import ImageData, ImageSpec, Split
from kfp_pytorch.training.data.sources import Source

# Of ImageNet's training set, in values from 0 to 255, as torchvision's own weights expect them.
MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
DEFAULT_SIZE = 224


@dataclass(frozen=True)
class Labelled:
    """The images and labels that were found at a location."""

    source: Source  # its images
    labels: Tensor  # the class of each
    held_out: Tensor | None  # whether each is held out; None to hold out a share of each class
    classes: tuple[str, ...]  # the name of each class
    block: int = 1  # how many neighbours are read together; see `sampler.DistributedBatchSampler`


@dataclass(frozen=True)
class EncodedSplit:
    """A part of a data set; see `data.Samples`."""

    source: Source  # reads its images
    rows: Tensor  # the number of each sample in the source
    labels: Tensor  # the class of each
    size: int  # height and width in pixels of a decoded crop

    def some(self, count: int) -> EncodedSplit:
        """See `Samples.some`: spread over all, as a folder is ordered by class."""
        every = len(self.rows)
        if count >= every:
            return self
        chosen = torch.arange(count) * every // count
        return replace(self, rows=self.rows[chosen], labels=self.labels[chosen])

    def take(self, indices: Tensor, device: torch.device) -> Split:
        """See `Samples.take`: the centre crops of these images, decoded in this process."""
        found = decode.on_cpu(self.contents(indices.tolist()), _centre, self.size)
        return Split(found.images.to(device), self.labels[indices].to(device))

    def contents(self, indices: Sequence[int]) -> list[Tensor]:
        """The bytes of these samples' files. Raises DataError: if one cannot be read."""
        return [
            decode.as_tensor(each) for each in self.source.read(self.rows[list(indices)].tolist())
        ]

    def name(self, index: int) -> str:
        """The path or URI of a sample, for messages."""
        return self.source.name(int(self.rows[index]))


def as_data(found: Labelled, image_size: int) -> ImageData:
    """Makes a data set, still encoded, with crops of `image_size` pixels; 0 for the usual 224."""
    size = image_size or DEFAULT_SIZE
    held_out = found.held_out
    if held_out is None:
        held_out = datasets.held_out_mask(found.labels, datasets.HELD_OUT_SHARE)

    def part(mask: Tensor) -> EncodedSplit:
        rows = mask.nonzero().flatten()
        return EncodedSplit(found.source, rows, found.labels[rows], size)

    spec = ImageSpec(
        shape=(3, size, size),
        classes=found.classes,
        mean=MEAN,
        std=STD,
        values=(0.0, 255.0),
        any_size=True,
    )
    return ImageData(spec, part(~held_out), part(held_out), found.block)


def _centre(_place: int, height: int, width: int) -> View:
    return centre_view(height, width)
