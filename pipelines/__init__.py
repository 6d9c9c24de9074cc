"""Pipelines, in the author's Python."""

from kfp_pytorch.pipelines.canary_rollout import canary_rollout
from kfp_pytorch.pipelines.data_parallel_sweep import data_parallel_sweep
from kfp_pytorch.pipelines.elastic_train import elastic_train
from kfp_pytorch.pipelines.fine_tune import fine_tune
from kfp_pytorch.pipelines.train_and_serve import train_and_serve

__all__ = [
    "canary_rollout",
    "data_parallel_sweep",
    "elastic_train",
    "fine_tune",
    "train_and_serve",
]
