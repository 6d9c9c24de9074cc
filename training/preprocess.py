"""The exported form of what held-out images go through: raw images of any size in.

`torch.export` cannot cut a window whose place depends on the image's size without forbidding some
sizes. A product with two matrices can: each row of a matrix holds the weights with which the
pixels of a column (or row) make one pixel of the result. These are the weights of an antialiased
bilinear resize, so the result is that of `augment.centre_view` and `augment.show`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AnySize(nn.Module):
    """A classifier that takes images of any height and width, raw, and looks at their middle."""

    def __init__(self, classifier: nn.Module, size: int) -> None:
        """Puts the cut and the resize before a classifier.

        Args:
            classifier: Takes images of `size` by `size` pixels, in the data set's own values.
            size: Height and width in pixels.
        """
        super().__init__()
        self.classifier = classifier
        self.size = size

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images of one size."""
        height, width = image.shape[-2:]
        short = torch.sym_min(height, width)
        side = (short * 7 + 7) // 8
        rows = resize_weights(height, (height - side) // 2, side, self.size, image.device)
        columns = resize_weights(width, (width - side) // 2, side, self.size, image.device)
        # Where training decodes, values are rounded to whole numbers, too.
        shown = (rows @ image.float() @ columns.T).round()
        logits: Tensor = self.classifier(shown)
        return logits


def resize_weights(pixels: int, start: int, length: int, size: int, device: torch.device) -> Tensor:
    """The weights that cut `length` of a row's pixels out from `start` on and resize them.

    Args:
        pixels: The row's length.
        start: The first pixel of the cut.
        length: The pixels of the cut.
        size: The pixels of the result.
        device: Where the weights are wanted.

    Returns:
        A matrix of [size, pixels], each row of which adds up to one.
    """
    scale = length / size
    # The middle of each pixel of the result, in pixels of the cut, and how far it looks.
    centres = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * scale
    reach = torch.sym_max(scale, 1.0)
    places = torch.arange(pixels, device=device, dtype=torch.float32) + 0.5 - start
    weights = (1 - (places[None] - centres[:, None]).abs() / reach).clamp(min=0)
    weights = weights * ((places > 0) & (places < length))
    return weights / weights.sum(dim=1, keepdim=True)
