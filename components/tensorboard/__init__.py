"""Opens TensorBoard on a run's logs before training writes them."""

from kfp_pytorch.components.tensorboard.component import tensorboard

__all__ = ["tensorboard"]
