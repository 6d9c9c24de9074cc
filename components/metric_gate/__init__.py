"""Stops a pipeline when a metric is beyond its threshold."""

from kfp_pytorch.components.metric_gate.component import metric_gate

__all__ = ["metric_gate"]
