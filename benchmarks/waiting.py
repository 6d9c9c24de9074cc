"""Waiting for what comes about by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(find: Callable[[], T | None], within: float) -> T:
    """What `find` gives, once it gives something."""
    deadline = time.monotonic() + within
    while not (found := find()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come about within {within} s")
        time.sleep(0.01)
    return found
