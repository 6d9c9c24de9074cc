"""The exception that ends a script, in the termination message."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from kfp_pytorch.launcher.constants import OUTPUT_ENV
from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.entry.rank_records import Failure
from kfp_pytorch.training.entry.termination_message import (
    failure_message,
    message_path,
    write_message,
)
from kfp_pytorch.training.script import place

_IMPORTED = time.time()
# The kind of exception that ended the script, if one did.
seen: list[type[BaseException]] = []


def watch() -> None:
    """Lets an exception that nothing catches leave a message, beside what it does anyway."""
    at_exit(ended_by)
    hook = sys.excepthook

    def leave_too(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        seen.append(kind)
        leave(error)
        hook(kind, error, trace)

    sys.excepthook = leave_too


def at_exit(function: Callable[[], object]) -> None:
    """Calls a function when this process ends, while threads can still be started.

    Python's `atexit` comes after all threads have ended, and the clients of object stores need
    some. What comes before has no public name; `concurrent.futures` uses it, too. A thread that is
    still there then, and asks for this, is refused it.
    """
    try:
        getattr(threading, "_register_atexit", atexit.register)(function)
    except RuntimeError:
        atexit.register(function)


def ended_by() -> type[BaseException] | None:
    """The kind of exception that ends the script, if one does; called at its end."""
    # A hook that was set after this one, as by rich, need not have called it.
    error = getattr(sys, "last_value", None)
    if error is not None and not seen and not hasattr(sys, "ps1"):
        seen.append(type(error))
        leave(error)
    return seen[0] if seen else None


def leave(error: BaseException) -> None:
    """Writes the failure of this rank, unless another of this node failed before it."""
    path = message_path()
    if path is None:
        return
    trace = "".join(traceback.format_exception(error))
    failure = Failure(place.rank(), time.time(), type(error).__name__, str(error), trace)
    with _locked(path):
        if not _has_failure_of_this_start(path):
            write_message(failure_message(failure))
            # To read the folder may take a while.
            output = os.environ.get(OUTPUT_ENV, "").strip()
            if output and (known := catalog.known_step(output)):
                write_message(failure_message(failure, known))


def result_left() -> dict[str, Any]:
    """The result that another process has left since the container's start, if one has."""
    path = message_path()
    try:
        told = json.loads(path.read_bytes()) if path is not None else {}
        return dict(told) if told["status"] == "succeeded" else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def unless_one_failed(make: Callable[[], str]) -> None:
    """Writes the message that is made, unless a rank of this node has failed since the start."""
    path = message_path()
    if path is not None:
        text = make()
        with _locked(path):
            if not _has_failure_of_this_start(path):
                write_message(text)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A context that one rank of a node has at a time, where files have locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_EX)
        yield


def _has_failure_of_this_start(path: Path) -> bool:
    """Whether a rank failed since this one was started; torchrun writes over no message."""
    try:
        told = json.loads(path.read_bytes())
        return bool(told["status"] == "failed" and told["error"]["time"] >= _started())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _started() -> float:
    """When this process was started. torchrun starts the ranks of a node together, and again."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    except (OSError, ValueError, AttributeError, IndexError):
        return _IMPORTED
