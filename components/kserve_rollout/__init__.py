"""Gives a canary all of the traffic, or none."""

from kfp_pytorch.components.kserve_rollout.component import kserve_rollout

__all__ = ["kserve_rollout"]
