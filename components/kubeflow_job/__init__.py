"""Trains with a TFJob, MPIJob, XGBoostJob, JAXJob or PaddleJob and outputs a model."""

from kfp_pytorch.components.kubeflow_job.component import kubeflow_job

__all__ = ["kubeflow_job"]
