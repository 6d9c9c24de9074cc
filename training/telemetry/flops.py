"""The floating-point operations of a model, and the peak of a GPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

# Dense bf16 operations a second, from the vendors' data sheets. The longest name that is part of a
# card's own name counts: an «H100 PCIe» has less than an H100 with NVLink.
_PEAKS = {
    "A10": 125e12,
    "A100": 312e12,
    "A30": 165e12,
    "A40": 149.7e12,
    "B200": 2250e12,
    "H100": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H200": 989e12,
    "L4": 121e12,
    "L40": 181e12,
    "L40S": 362e12,
}


def peak_flops(card: str) -> float | None:
    """Return the dense bf16 operations a second of a card's data sheet; None if unknown."""
    words = card.replace("-", " ").split()
    known = [name for name in _PEAKS if _contains(words, name.split())]
    return _PEAKS[max(known, key=len)] if known else None


def _contains(words: list[str], name: list[str]) -> bool:
    """Return whether `words` contain `name`, as whole words in sequence."""
    return any(words[i : i + len(name)] == name for i in range(len(words)))


def transformer_flops_per_token(
    parameters: int, embedding_parameters: int, layers: int, dim: int, seq_len: int
) -> int:
    """Return the operations of forward and backward for one token of a decoder.

    Six for each parameter that is not just looked up (a multiply and an add, forward and twice
    backward), and the attention's two products, of which a causal mask leaves half. What activation
    checkpointing computes again does not count.
    """
    return 6 * (parameters - embedding_parameters) + 6 * layers * dim * seq_len


def image_flops(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the operations of forward and backward for one image.

    They are counted once, on shapes without weights: a few tenths of a second. Only matrix
    products, convolutions and attention count, a multiply and an add as two. `model`: neither
    wrapped nor compiled; it is left as it is. `shape`: channels, height and width.
    """
    on_meta = {
        name: torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    # Batch norm does not train on one value.
    images = torch.empty(2, *shape, device="meta")
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        functional_call(model, on_meta, images).sum().backward()
    return float(counter.get_total_flops()) / len(images)


def utilisation(units_per_second: float, flops_per_unit: float, card: str) -> float | None:
    """Return the model FLOPs utilisation of one card, 0 to 1, or None when its peak is unknown."""
    peak = peak_flops(card)
    return None if peak is None else units_per_second * flops_per_unit / peak
