"""What the container may use: CPU threads and memory."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OMP_ENV = "OMP_NUM_THREADS"
# The limit in version 2 of cgroups, and in version 1.
MEMORY_FILES = ("memory.max", "memory/memory.limit_in_bytes")
# Of the limit, this part is left to the kernel and to other processes of the container.
RESERVE = 1 / 20
# Connections of each protocol, each of which takes a file; and the files of all else.
MOST_CONNECTIONS = 4096
_OTHER_FILES = 128


def cpu_limit(cgroup: Path = CGROUP) -> int:
    """Counts the CPUs that this process may use: OMP_NUM_THREADS, or affinity and quota.

    torch counts the node's CPUs: in a container with a limit its threads would compete for it.
    """
    wanted = os.environ.get(OMP_ENV, "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()]
    with contextlib.suppress(OSError, ValueError):
        # Microseconds; the quota is "max" without a limit.
        quota, period = (cgroup / "cpu.max").read_text().split()
        limits.append(-(-int(quota) // int(period)))
    return max(1, min(limit or 1 for limit in limits))


def memory_limit(cgroup: Path = CGROUP) -> int:
    """The bytes of memory that this process may use: the machine's, the cgroup's, `ulimit -d`."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in MEMORY_FILES:
        # The other version's file is absent; without a limit this one's is "max".
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((cgroup / name).read_text()))
    own, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return min([*limits, own] if own != resource.RLIM_INFINITY else limits)


def cap_memory(limit: int) -> None:
    """Makes an allocation fail that would bring this process above a limit.

    A kubelet sets vm.overcommit_memory to 1: without this every allocation succeeds, and the
    kernel kills the process that uses what it was given.
    """
    status = Path("/proc/self/status").read_text()
    reserved, used = (
        int(match[1]) * 1024
        for match in (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmData", "RssAnon"))
        if match
    )
    # The kernel counts what is mapped. Of that, what is not in use now will hardly ever be.
    cap = int(limit * (1 - RESERVE)) + reserved - used
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = cap if hard == resource.RLIM_INFINITY else min(cap, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def connection_limit() -> int:
    """The connections that each of the two protocols may have. Raises the soft limit of files.

    A process that has no file for one more connection answers nobody who is new.
    """
    wanted = 2 * MOST_CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(1, (soft - _OTHER_FILES) // 2)
    return MOST_CONNECTIONS


def with_unit(size: int) -> str:
    """Writes a number of bytes with a unit, such as `1.5 GiB`."""
    # The product of stated sizes may be larger than any float.
    amount, units = float(min(size, 2**100)), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.4g} {units[0]}"
