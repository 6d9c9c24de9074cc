"""Looks whether the cluster is ready for a run, before anything long begins."""

from kfp_pytorch.components.preflight.component import preflight

__all__ = ["preflight"]
