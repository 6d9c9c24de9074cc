"""How many CPU threads the container may use."""

from __future__ import annotations

import os
from pathlib import Path

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
OMP_ENV = "OMP_NUM_THREADS"


def cpu_limit(cpu_max: Path = CPU_MAX) -> int:
    """Counts the CPUs that this process may use.

    torch counts the node's CPUs: in a container with a limit its threads would fight over it.

    Args:
        cpu_max: The cgroup's file with `<quota> <period>` in microseconds, or `max <period>`.

    Returns:
        OMP_NUM_THREADS where it is set, else the least of the scheduler's affinity and the
        cgroup's quota; at least 1.
    """
    wanted = os.environ.get(OMP_ENV, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(allowed or 1, _quota(cpu_max) or allowed or 1))


def _quota(cpu_max: Path) -> int | None:
    try:
        quota, period = cpu_max.read_text().split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
