"""How much memory a container's processes use, as its control group would count it."""

from __future__ import annotations

import re
from pathlib import Path

_KIB = 1024
# Of a process's pages, its control group is charged for these two alone.
_RESIDENT = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
_SHARED_FAIRLY = re.compile(rb"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def used(pids: list[int], limit: float) -> int:
    """The bytes of anonymous and shared memory that processes use together.

    Pages that a fork shares with its parent are first counted for both, which is quick. Only where
    that exceeds the limit are they counted once, which takes milliseconds.
    """
    total = _sum(pids, "status", _RESIDENT)
    return _sum(pids, "smaps_rollup", _SHARED_FAIRLY) or total if total > limit else total


def _sum(pids: list[int], file: str, pattern: re.Pattern[bytes]) -> int:
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/{file}").read_bytes()
        except OSError:
            continue  # it has ended
        total += sum(int(amount) for amount in pattern.findall(text)) * _KIB
    return total
