"""Serves a model with KServe."""

from kfp_pytorch.components.kserve_deploy.component import kserve_deploy

__all__ = ["kserve_deploy"]
