"""The crops of images: random ones to train on, the centre to evaluate on.

The crop of a sample depends on seed, epoch and sample alone. So a resumed epoch has the same crops,
whichever process decodes them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# The area and the aspect ratio of a random crop: those of Szegedy et al., "Going deeper with
# convolutions", 2014, and the defaults of torchvision.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10
# The number of images that are resized together, and their longest side.
_TOGETHER, _LARGE = 128, 1024


class View(NamedTuple):
    """A part of an image, in pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


def random_view(height: int, width: int, seed: int, epoch: int, index: int) -> View:
    """A random part of an image, mirrored half of the time: the same for the same arguments."""
    draw = random.Random(f"{seed}/{epoch}/{index}")  # noqa: S311 - no secret
    flip = draw.random() < 0.5
    for _ in range(_TRIES):
        area = height * width * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < high <= height and 0 < wide <= width:
            top, left = draw.randint(0, height - high), draw.randint(0, width - wide)
            return View(top, left, high, wide, flip)
    # The image is too long for such a part: the largest centre part of a usual aspect ratio.
    high, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return View((height - high) // 2, (width - wide) // 2, high, wide, flip)


def centre_view(height: int, width: int) -> View:
    """The middle square, seven eighths of the shorter side: 224 of 256 pixels."""
    side = (min(height, width) * 7 + 7) // 8
    return View((height - side) // 2, (width - side) // 2, side, side)


def show(image: Tensor, view: View, size: int) -> Tensor:
    """Crops a uint8 image [channels, height, width] to a view and resizes it to a square."""
    # torchvision takes seconds to import, and data sets in memory do not need it.
    from torchvision.transforms.v2 import functional

    shown: Tensor = functional.resized_crop(
        image, view.top, view.left, view.height, view.width, [size, size], antialias=True
    )
    return functional.horizontal_flip(shown) if view.flip else shown


def show_many(images: Sequence[Tensor], views: Sequence[View], size: int) -> Tensor:
    """Like `show` for images on a GPU, with a few kernels for all of them together."""
    parts = []
    for start in range(0, len(images), _TOGETHER):
        some, their = images[start : start + _TOGETHER], views[start : start + _TOGETHER]
        if max(max(image.shape) for image in some) > _LARGE:
            # All would be padded to the size of the largest.
            parts.append(torch.stack([show(*each, size) for each in zip(some, their, strict=True)]))
        else:
            parts.append(_show_together(some, their, size))
    return torch.cat(parts)


def resize_weights(pixels: int, start: Tensor, length: Tensor, size: int) -> Tensor:
    """The weights that crop and resize rows of pixels, antialiased, by a matrix product.

    Each row of a matrix has the weights of the pixels of a row (or column) of the image in one
    pixel of the result. `start`, `length`: the first pixel of each part, and its pixels. Returns
    [parts, size, pixels]; rows add up to one.
    """
    start, length = start[:, None], length[:, None]
    scale = length / size
    # The centre of each pixel of the result, in pixels of the part, and its reach.
    centres = (torch.arange(size, device=start.device, dtype=torch.float32) + 0.5) * scale
    reach = scale.clamp(min=1)[..., None]
    positions = torch.arange(pixels, device=start.device, dtype=torch.float32) + 0.5 - start
    weights = (1 - (positions[:, None] - centres[..., None]).abs() / reach).clamp(min=0)
    weights = weights * ((positions > 0) & (positions < length))[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def _show_together(images: Sequence[Tensor], views: Sequence[View], size: int) -> Tensor:
    """Resizes images by matrix products; one by one they would take a dozen kernels each."""
    device, channels = images[0].device, images[0].shape[0]
    height, width = (max(image.shape[side] for image in images) for side in (1, 2))
    padded = torch.zeros(len(images), channels, height, width, dtype=torch.uint8, device=device)
    for row, image in zip(padded, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]].copy_(image)
    top, left, high, wide, flip = torch.tensor(views, dtype=torch.float32).T.to(device)
    rows = resize_weights(height, top, high, size)
    columns = resize_weights(width, left, wide, size)
    columns = torch.where(flip[:, None, None] > 0, columns.flip(1), columns)
    # float16 has 11 bits, enough for values of 8 bits.
    shown = rows[:, None].half() @ padded.half() @ columns[:, None].half().mT
    return shown.round().clamp(0, 255).byte()
