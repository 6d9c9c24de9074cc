"""How much memory a rank takes."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_GB = 1e9
_STATM = Path("/proc/self/statm")


def memory(device: torch.device) -> dict[str, float]:
    """The memory of this process, in GB (10^9 bytes).

    Args:
        device: Where it computes.

    Returns:
        `host_memory_gb`, what lies in the machine's memory, where the system tells it. On a GPU
        also `gpu_memory_gb`, the highest use since the last call, and `gpu_reserved_gb`, what
        torch holds of the card.
    """
    values: dict[str, float] = {}
    if _STATM.exists():
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
        values["host_memory_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / _GB
    if device.type == "cuda":
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        values["gpu_memory_gb"] = stats["allocated_bytes"]["all"]["peak"] / _GB
        values["gpu_reserved_gb"] = stats["reserved_bytes"]["all"]["current"] / _GB
        torch.cuda.reset_peak_memory_stats(device)
    return values
