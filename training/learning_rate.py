"""The learning rate as a function of the progress of training.

The rate of one process is multiplied by the number of processes, as the batch is that much larger,
and is reached over a warm-up that starts at the rate of one process (Goyal et al., "Accurate, Large
Minibatch SGD", 2017). Then it falls to zero along half a cosine. It depends on the position alone,
so a resumed run needs no state of a scheduler.
"""

from __future__ import annotations

import math

from kfp_pytorch.training.arguments.config import Config


def peak_rate(config: Config, world_size: int) -> float:
    """The learning rate after warm-up, for this many processes."""
    return config.lr * world_size if config.lr_scaling == "linear" else config.lr


def learning_rate(config: Config, world_size: int, epochs_done: float) -> float:
    """The learning rate of a step after so many epochs, with fractions."""
    peak = peak_rate(config, world_size)
    warmup = min(config.warmup_epochs, float(config.epochs))
    if epochs_done < warmup:
        return config.lr + (peak - config.lr) * epochs_done / warmup
    fraction = (epochs_done - warmup) / max(config.epochs - warmup, 1e-9)
    return peak * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0)))
