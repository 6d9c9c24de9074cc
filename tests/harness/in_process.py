"""A training in the test's own process: asked to stop at a step, and what it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kfp_pytorch.training.faults.stopping import StopRequest

NEVER = 10**9


class StopAt(StopRequest):
    """Asks to stop once it was looked at so many times: at that step, that is."""

    def __init__(self, looks: int = NEVER) -> None:
        self.looks = looks

    @property
    def requested(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def newest_state(output: Path) -> dict[str, Any]:
    """What the newest checkpoint of a job's folder holds, read with torch's own tools."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(max((output / "checkpoints").glob("step-*")), output / "newest.pt")
    return dict(torch.load(output / "newest.pt", weights_only=True))


def learned(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics without how fast training was, which no other run repeats."""
    return {name: value for name, value in metrics.items() if name != "samples_per_second"}
