"""Kubeflow Pipelines components for PyTorch: train, gate, deploy and check."""

__all__ = ["__version__"]

__version__ = "0.1.0"
