"""How much memory another process took."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_growth(pid: int) -> Iterator[Callable[[], int]]:
    """Gives what tells by how many bytes a process has been larger than at first, at most."""
    # As proc(5) says, this makes the highest resident size the one of now.
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = _peak(pid)
    yield lambda: _peak(pid) - before


def _peak(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)
    assert found is not None
    return int(found[1]) * 1024
