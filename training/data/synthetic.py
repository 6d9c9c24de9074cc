"""Random images made on the device, to measure how fast a model trains without loading."""

from __future__ import annotations

import torch
from torch import Tensor

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data.datasets import ImageData, ImageSpec, Split
from kfp_pytorch.training.data.encoded_images import DEFAULT_SIZE, MEAN, STD

CLASSES = 1000
# As many as ImageNet has.
SAMPLES, HELD_OUT = 1_281_167, 50_000
_KEPT = 4


class RandomSamples:
    """Samples whose images have nothing to do with their labels; see `data.Samples`."""

    def __init__(self, samples: int, size: int, seed: int) -> None:
        self._size = size
        self._generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (samples,), generator=self._generator)
        self._made: list[Split] = []
        self._next = 0

    def some(self, count: int) -> RandomSamples:
        """See `Samples.some`."""
        return RandomSamples(min(count, len(self.labels)), self._size, 0)

    def take(self, indices: Tensor, device: torch.device) -> Split:
        """See `Samples.take`: a few batches are made once, and repeated."""
        enough = self._made and len(indices) <= len(self._made[0].labels)
        if not enough or self._made[0].labels.device != device:
            self._made = [self._make(len(indices), device) for _ in range(_KEPT)]
        self._next = (self._next + 1) % _KEPT
        images, labels = self._made[self._next]
        return Split(images[: len(indices)], labels[: len(indices)])

    def _make(self, count: int, device: torch.device) -> Split:
        shape = (count, 3, self._size, self._size)
        images = torch.randint(256, shape, dtype=torch.uint8, device=device)
        labels = torch.randint(CLASSES, (count,), device=device)
        return Split(images.contiguous(memory_format=torch.channels_last), labels)


def make(config: Config) -> ImageData:
    """Random data of ImageNet's size and classes, or of `max_train_samples`."""
    size = config.image_size or DEFAULT_SIZE
    held_out = min(HELD_OUT, config.max_train_samples or HELD_OUT)
    spec = ImageSpec(
        shape=(3, size, size),
        classes=tuple(str(number) for number in range(CLASSES)),
        mean=MEAN,
        std=STD,
        values=(0.0, 255.0),
    )
    return ImageData(spec, RandomSamples(SAMPLES, size, 0), RandomSamples(held_out, size, 1))
