"""Optimizers by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kfp_pytorch.training.arguments.config import Config

_BETAS = (0.9, 0.999)


def build(config: Config, model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    """The optimizer of a run.

    Args:
        config: Which one, and its rate, momentum and weight decay.
        model: What it updates.
        fused: Whether all weights are updated in one kernel.

    Returns:
        The optimizer.
    """
    # None leaves torch its own choice where fused was not asked for.
    options: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "fused": fused or None,
    }
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), betas=_BETAS, **options)
    return torch.optim.SGD(
        model.parameters(), momentum=config.momentum, nesterov=config.momentum > 0, **options
    )
