"""Registers a model to registries of models."""

from kfp_pytorch.components.register_model.component import register_model

__all__ = ["register_model"]
