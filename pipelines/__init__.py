"""Pipelines, in the author's Python."""

from kfp_pytorch.pipelines.canary_rollout import canary_rollout
from kfp_pytorch.pipelines.train_and_serve import train_and_serve

__all__ = ["canary_rollout", "train_and_serve"]
