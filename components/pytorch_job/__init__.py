"""Trains with a PyTorchJob and outputs the model, its metrics, its curves and a report."""

from kfp_pytorch.components.pytorch_job.component import pytorch_job

__all__ = ["pytorch_job"]
