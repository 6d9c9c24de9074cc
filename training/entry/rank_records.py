"""How ranks and agent tell the entry point how it ended: files in a folder of this container.

`begun` says that ranks of this container began to train, before they were started again.
`result.json` is written when training finished. Each rank that raises leaves an `error.json`
where torchelastic tells it to, under `ranks/`. The agent leaves `agent.json` for what has no such
record, such as a rank that was killed.
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
# Of a container whose arguments or environment cannot work; a new start would not help.
EXIT_USAGE = 2
# The operator's restart policy `ExitCode` starts a pod again that ends with 128 or above; this one
# is kept for programs that ask for it.
EXIT_AGAIN = 138
_ATTEMPT = re.compile(r"attempt_(\d+)")


@dataclass(frozen=True)
class Failure:
    """The error of one rank, or of the agent of a node.

    Attributes:
        rank: The rank in the whole job.
        time: When it was recorded, in seconds since the epoch.
        type: The exception's class, or a signal's name.
        message: The exception's text.
        traceback: The Python traceback, or an empty string.
        exit_code: What the process left with; negative for a signal.
    """

    rank: int
    time: float
    type: str
    message: str
    traceback: str = ""
    exit_code: int = 1


def note_begun() -> None:
    """Leaves word for ranks that torchrun will start again, if there is an entry point."""
    folder = os.environ.get(FOLDER_ENV)
    if folder:
        (Path(folder) / BEGUN_FILE).touch()


def has_begun() -> bool:
    """Whether ranks of this container began before, and were started again."""
    folder = os.environ.get(FOLDER_ENV)
    return folder is not None and (Path(folder) / BEGUN_FILE).exists()


def write_result(result: dict[str, Any]) -> None:
    """Leaves the result of a finished training for the entry point, if there is one."""
    folder = os.environ.get(FOLDER_ENV)
    if folder:
        _write_whole(Path(folder) / RESULT_FILE, json.dumps(result))


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result that the ranks left in `folder`, or None if training did not finish."""
    try:
        result: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    return result


def write_agent_failure(failure: Failure) -> None:
    """Leaves what the agent saw of a failure that no rank could record."""
    folder = os.environ.get(FOLDER_ENV)
    if folder:
        _write_whole(Path(folder) / AGENT_FILE, json.dumps(asdict(failure)))


def failure_record(failure: Failure) -> str:
    """A failure in the form of torchelastic's error files, which its agent reads too."""
    extra = {"py_callstack": failure.traceback, "timestamp": str(int(failure.time))}
    text = f"{failure.type}: {failure.message}"
    return json.dumps(
        {"message": {"message": text, "extraInfo": extra}, "failure": asdict(failure)}
    )


def first_failure(folder: Path) -> Failure | None:
    """The first failure by the time of its record, among those of the last attempt.

    Args:
        folder: The folder that ranks and agent wrote to.

    Returns:
        The failure, or None where nobody recorded any.
    """
    paths = list((folder / RANKS_FOLDER).rglob("error.json"))
    last = max((_attempt(path) for path in paths), default=0)
    records = [_read(path) for path in paths if _attempt(path) == last]
    failures = [Failure(**record["failure"]) for record in records if "failure" in record]
    agent = _read(folder / AGENT_FILE)
    if agent:
        failures.append(Failure(**agent))
    return min(failures, key=lambda failure: failure.time, default=None)


def leave(code: int) -> NoReturn:
    """Ends this process at once.

    Taking apart all that torch imported takes an interpreter seconds, in which the other nodes
    and the pod's grace period wait. All files are closed by now.
    """
    for stream in (sys.stdout, sys.stderr):
        # Nobody may read it any more, or its disk be full.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _attempt(path: Path) -> int:
    found = _ATTEMPT.search(str(path))
    return int(found[1]) if found else 0


def _read(path: Path) -> dict[str, Any]:
    """A record, or nothing where its writer was killed before it was whole."""
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return record


def _write_whole(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    Path(file.name).replace(path)
