"""Checks a model server's answers against known ones."""

from kfp_pytorch.components.kserve_predict.component import kserve_predict

__all__ = ["kserve_predict"]
