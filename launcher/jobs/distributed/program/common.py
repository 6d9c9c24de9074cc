"""What the step says of the component, where its input artifacts are, and how a process ended."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
SETTINGS = "kfp_pytorch_distributed.json"
COMPONENT = "ephemeral_component.py"
# The folder of all processes of this node.
RANKS = "KFP_PYTORCH_RANKS"
CLIENTS = "The image needs fsspec, and s3fs or gcsfs (packages_to_install)"


def read_settings() -> dict[str, Any]:
    """What the step says of the component."""
    found: dict[str, Any] = json.loads((HERE / SETTINGS).read_text(encoding="utf-8"))
    return found


def datasets() -> dict[str, str]:
    """Input artifacts that lie on a claim or in a bucket, by name: a path or a URI."""
    found = json.loads(os.environ.get("KFP_PYTORCH_DATASETS") or "{}")
    return {name: str(each["uri"]) for name, each in found.items()}


def fetched(name: str, uri: str) -> Path:
    """The place of an input artifact that this node downloads."""
    return Path(os.environ[RANKS], "inputs", name, uri.rstrip("/").rpartition("/")[2])


def recorded(rank: int | None, work: Callable[[], None]) -> int:
    """Does a process's work; leaves an error in a file. Returns the exit code."""
    try:
        work()
    except SystemExit as error:
        if rank and not error.code:
            return 0
        told = f"the function ended its process by sys.exit({error.code!r}) and returned nothing"
        leave_error(rank, "SystemExit", told, users_traceback(error))
        return 1
    except Exception as error:
        leave_error(rank, type(error).__name__, str(error), users_traceback(error))
        return 1
    return 0


def leave_error(rank: int | None, kind: str, message: str, text: str) -> None:
    """Writes what ended this process, for the container's entry point."""
    print(text, file=sys.stderr, flush=True)
    record = {
        "rank": rank,
        "restart": int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
        "time": time.time(),
        "type": kind,
        "message": message,
        "traceback": text,
    }
    file = Path(os.environ[RANKS], f"error-{rank}.json")
    file.write_text(json.dumps(record), encoding="utf-8")


def users_traceback(error: BaseException) -> str:
    """A traceback from the component's own function on."""
    where = error.__traceback__
    own = where
    while own is not None and Path(own.tb_frame.f_code.co_filename).name != COMPONENT:
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own or where))
