"""Trains with a TrainJob and outputs the model, its metrics, its curves and a report."""

from kfp_pytorch.components.train_job.component import train_job

__all__ = ["train_job"]
