"""The preprocessing of held-out images in a form that can be exported, for images of any size.

`torch.export` cannot crop to a window that depends on the image's size without excluding some
sizes. A product with two matrices of weights can, with the same result as `augment.centre_view`
and `augment.show`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kfp_pytorch.training.data.augment import resize_weights


class AnySize(nn.Module):
    """A classifier for raw images of any height and width, of which it takes the centre."""

    def __init__(self, classifier: nn.Module, size: int) -> None:
        """Adds crop and resize to `size` by `size` pixels before a classifier."""
        super().__init__()
        self.classifier = classifier
        self.size = size

    def forward(self, image: Tensor) -> Tensor:
        """Logits of a batch of images of one size."""
        height, width = image.shape[-2:]
        short = torch.sym_min(height, width)
        side = (short * 7 + 7) // 8
        rows = self._weights(height, side, image)
        columns = self._weights(width, side, image)
        # Decoding for training rounds to whole numbers, too.
        shown = (rows @ image.float() @ columns.T).round()
        logits: Tensor = self.classifier(shown)
        return logits

    def _weights(self, pixels: int, side: int | torch.SymInt, image: Tensor) -> Tensor:
        start = torch.full((1,), (pixels - side) // 2, dtype=torch.float32, device=image.device)
        length = torch.full((1,), side, dtype=torch.float32, device=image.device)
        return resize_weights(pixels, start, length, self.size)[0]
