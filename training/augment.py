"""Which part of an image a network is shown: at random to train on, the centre to be judged by.

What is drawn for a sample follows from seed, epoch and sample alone. So a resumed epoch sees the
very crops that it would have seen, whichever process decodes them and wherever.
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

from torch import Tensor

# The share of an image's area and the width by height of a random crop: those of Szegedy et al.,
# "Going deeper with convolutions", 2014, which torchvision takes by default, too.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10


class View(NamedTuple):
    """A part of an image, in pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    flip: bool = False


def random_view(height: int, width: int, seed: int, epoch: int, index: int) -> View:
    """A random part of an image, mirrored every other time.

    Args:
        height: The image's height in pixels.
        width: Its width in pixels.
        seed: The job's seed.
        epoch: The epoch.
        index: The sample.

    Returns:
        The same view for the same arguments, on every machine.
    """
    draw = random.Random(f"{seed}/{epoch}/{index}")  # noqa: S311 - no secret
    flip = draw.random() < 0.5
    for _ in range(_TRIES):
        area = height * width * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        high, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < high <= height and 0 < wide <= width:
            top, left = draw.randint(0, height - high), draw.randint(0, width - wide)
            return View(top, left, high, wide, flip)
    # The image is so long that no such part fits: as much of its middle as has a usual shape.
    high, wide = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return View((height - high) // 2, (width - wide) // 2, high, wide, flip)


def centre_view(height: int, width: int) -> View:
    """The middle square, seven eighths of the shorter side: 224 of 256 pixels."""
    side = (min(height, width) * 7 + 7) // 8
    return View((height - side) // 2, (width - side) // 2, side, side)


def show(image: Tensor, view: View, size: int) -> Tensor:
    """Cuts a view out of an image and resizes it.

    Args:
        image: Whole, uint8, of shape [channels, height, width]; on any device.
        view: What to cut out.
        size: Height and width of the result in pixels.

    Returns:
        The view, uint8, of shape [channels, size, size].
    """
    # torchvision takes seconds to import, and data sets in memory do not need it.
    from torchvision.transforms.v2 import functional

    shown: Tensor = functional.resized_crop(
        image, view.top, view.left, view.height, view.width, [size, size], antialias=True
    )
    return functional.horizontal_flip(shown) if view.flip else shown
