"""The folder of a local run: `ROOT/runs/RUN/`, and the run that `--resume` continues."""

from __future__ import annotations

import json
import re
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.local import lifecycle
from kfp_pytorch.local.kfp.runner import PIPELINE_FILE, RUN_FILE, Run
from kfp_pytorch.local.processes import guard, locks

SUMMARY_FILE = "summary.json"
LOG_FILE = "runner.log"
# A run of an earlier version has no options.
_FIELDS = {field.name for field in fields(Run)}
# The processes of a run that was killed end within `guard.ORPHAN_GRACE`.
_LOCK_WITHIN_S = guard.ORPHAN_GRACE + 3


def new_run(pipeline: str, arguments: dict[str, Any]) -> Run:
    """Makes the identity of a new run, whose name sorts by time."""
    now = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    name = f"{pipeline}-{now}-{secrets.token_hex(2)}"
    return Run(name=name, id=str(uuid.uuid4()), pipeline=pipeline, arguments=arguments)


def run_to_resume(runs: Path, pipeline: str, arguments: dict[str, Any]) -> Run:
    """Finds the newest run of a pipeline, with the identity that it had.

    Raises click.ClickException: there is no such run, or it succeeded.
    """
    found = [run for run in recorded(runs) if run.pipeline == pipeline]
    if not found:
        raise click.ClickException(
            f"There is no run of {pipeline} to resume in {runs}. Start one without --resume."
        )
    last = found[-1]
    if read(runs / last.name / SUMMARY_FILE).get("status") == "succeeded":
        raise click.ClickException(
            f"The last run of {pipeline}, {last.name}, succeeded. Start another without --resume."
        )
    return replace(last, arguments=last.arguments | arguments)


def recorded(runs: Path) -> list[Run]:
    """Lists the runs of a folder, the one that was started or resumed last at the end."""
    files = sorted(runs.glob(f"*/{RUN_FILE}"), key=lambda path: path.stat().st_mtime)
    return [
        Run(**found)
        for found in map(read, files)
        if _FIELDS - {"options"} <= found.keys() <= _FIELDS
    ]


def read(path: Path) -> dict[str, Any]:
    """Returns what a file holds; nothing if it is damaged, as by a full disk or a kill."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def log(folder: Path) -> Iterator[FileIO]:
    """Opens a run's log, empty; it is locked as long as a process that inherits it lives.

    Makes the run's folder. Raises click.ClickException: the run is still running, or the folder
    cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Without a buffer: what a full disk does not take is lost, and closing raises nothing.
        file = (folder / LOG_FILE).open("ab", buffering=0)
    except OSError as error:
        raise click.ClickException(str(lifecycle.HomeError(folder, error))) from None
    with file:
        if not locks.take(file, within=_LOCK_WITHIN_S):
            raise click.ClickException(
                f"The run {folder.name} still goes on. Wait for its end, or end its command with "
                "Ctrl-C first."
            )
        file.truncate(0)
        yield file


def _yaml(spec: dict[str, Any]) -> str:
    """Writes JSON that YAML reads alike, which KFP takes it for.

    YAML has no surrogate pairs, as JSON writes a character beyond U+FFFF; and it takes some of
    the others for line breaks or refuses them, unless they are escaped.
    """
    text = json.dumps(spec, ensure_ascii=False)
    return re.sub("[\x7f-\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def write(folder: Path, run: Run, spec: dict[str, Any]) -> None:
    """Writes what the runner reads. Raises click.ClickException: the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PIPELINE_FILE).write_text(_yaml(spec), encoding="utf-8")
        (folder / RUN_FILE).write_text(json.dumps(asdict(run)), encoding="utf-8")
        (folder / SUMMARY_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise click.ClickException(str(lifecycle.HomeError(folder, error))) from None
