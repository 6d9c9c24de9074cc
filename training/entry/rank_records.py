"""Files by which ranks and agent report to the entry point how training ended.

`begun` exists if ranks of this container began to train before they were started again.
`result.json` is written when training finished. Each rank that raises writes an `error.json` under
`ranks/`, as torchelastic wants it. The agent writes `agent.json` for failures with no such record,
such as a rank that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

FOLDER_ENV = "KFP_PYTORCH_OUTCOME_DIR"
RANKS_FOLDER = "ranks"
RESULT_FILE = "result.json"
BEGUN_FILE = "begun"
AGENT_FILE = "agent.json"
# For arguments or an environment that cannot work; a new start would not help.
EXIT_USAGE = 2
# The operator's restart policy `ExitCode` retries a pod that ends with 128 or above; 138 is meant
# for programs that ask for a retry.
EXIT_RETRYABLE = 138
_ATTEMPT = re.compile(r"attempt_(\d+)")


@dataclass(frozen=True)
class Failure:
    """The error of one rank, or of the agent of a node."""

    rank: int  # the rank in the whole job
    time: float  # when it was recorded, in seconds since the epoch
    type: str  # the exception's class, or a signal's name
    message: str  # the exception's text
    traceback: str = ""  # the Python traceback, or an empty string
    exit_code: int = 1  # the exit code of the process; negative for a signal


def record_start() -> None:
    """Records that training began, for ranks that torchrun starts again."""
    folder = os.environ.get(FOLDER_ENV)
    if folder:
        (Path(folder) / BEGUN_FILE).touch()


def was_started_before() -> bool:
    """Whether ranks of this container began to train before, and were started again."""
    folder = os.environ.get(FOLDER_ENV)
    return folder is not None and (Path(folder) / BEGUN_FILE).exists()


def write_result(result: dict[str, Any]) -> None:
    """Writes the result of a finished training, if there is an entry point."""
    folder = os.environ.get(FOLDER_ENV)
    if folder:
        _write_at_once(Path(folder) / RESULT_FILE, json.dumps(result))


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result that the ranks wrote to `folder`, or None if training did not finish."""
    try:
        result: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    return result


def write_agent_failure(failure: Failure) -> None:
    """Writes a failure that no rank could record."""
    folder = os.environ.get(FOLDER_ENV)
    if folder:
        _write_at_once(Path(folder) / AGENT_FILE, json.dumps(asdict(failure)))


def failure_record(failure: Failure) -> str:
    """A failure in the form of torchelastic's error files, which its agent reads, too."""
    extra = {"py_callstack": failure.traceback, "timestamp": str(int(failure.time))}
    text = f"{failure.type}: {failure.message}"
    return json.dumps(
        {"message": {"message": text, "extraInfo": extra}, "failure": asdict(failure)}
    )


def first_failure(folder: Path) -> Failure | None:
    """The first failure of the last attempt, by the time of its record; None without a record."""
    paths = list((folder / RANKS_FOLDER).rglob("error.json"))
    last = max((_attempt(path) for path in paths), default=0)
    records = [_read(path) for path in paths if _attempt(path) == last]
    failures = [Failure(**record["failure"]) for record in records if "failure" in record]
    agent = _read(folder / AGENT_FILE)
    if agent:
        failures.append(Failure(**agent))
    return min(failures, key=lambda failure: failure.time, default=None)


def exit_now(code: int) -> NoReturn:
    """Ends this process at once.

    The interpreter's own shutdown takes seconds after torch was imported, in which the other nodes
    wait and the pod's grace period passes. All files are closed by now.
    """
    for stream in (sys.stdout, sys.stderr):
        # The reader may have closed it, or its disk may be full.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _attempt(path: Path) -> int:
    found = _ATTEMPT.search(str(path))
    return int(found[1]) if found else 0


def _read(path: Path) -> dict[str, Any]:
    """A record, or nothing where its writer was killed before it was complete."""
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return record


def _write_at_once(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    Path(file.name).replace(path)
