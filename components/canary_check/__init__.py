"""Compares a canary with the stable revision."""

from kfp_pytorch.components.canary_check.component import canary_check

__all__ = ["canary_check"]
