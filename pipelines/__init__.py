"""Pipelines, in the author's Python."""

from kfp_pytorch.pipelines.train_and_serve import train_and_serve

__all__ = ["train_and_serve"]
