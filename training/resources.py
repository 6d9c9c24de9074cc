"""What this container may use: its CPU cores and its memory."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
# The limit of cgroup v2, and that of v1.
_MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def usable_cores() -> int:
    """The cores that this process may use: its affinity, or the container's limit if lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
        limit = int(quota) // int(period)
    except (OSError, ValueError):
        return cores or 1
    return max(1, min(cores or 1, limit))


def usable_memory() -> int:
    """The memory that this container may use, in bytes: its limit, or the machine's if lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _MEMORY_LIMITS:
        try:
            limits.append(int((_CGROUP / name).read_text(encoding="ascii")))
        except (OSError, ValueError):
            # The file of the other version, or "max".
            continue
    return min(limits)
