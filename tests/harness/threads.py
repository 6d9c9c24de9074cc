"""Waits for the threads that a test has started."""

from __future__ import annotations

import threading
import time


def join_since(before: set[threading.Thread], within: float = 60.0) -> None:
    """Waits for the end of all threads but those that there were before."""
    deadline = time.monotonic() + within
    while (started := _ours() - before) and time.monotonic() < deadline:
        for thread in started:
            # One that is just being started has no ident yet, and cannot be joined.
            if thread.ident is not None:
                thread.join(deadline - time.monotonic())


def _ours() -> set[threading.Thread]:
    # What watches the step's own pod ends with its process.
    return {thread for thread in threading.enumerate() if thread.name != "OwnPod"}
