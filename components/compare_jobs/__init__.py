"""Compares trained jobs of different sizes."""

from kfp_pytorch.components.compare_jobs.component import compare_jobs

__all__ = ["compare_jobs"]
