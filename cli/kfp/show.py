"""How runs and schedules on KFP are shown to a person."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kfp_pytorch.client import Run, Schedule, Step

_LINES = 12


def run(run: Run) -> str:
    """A run with its steps, its failure, and where it is in the UI."""
    columns = shutil.get_terminal_size().columns
    lines = [f"{run.name} {run.status} after {duration(int(run.seconds))}", f"  id  {run.run_id}"]
    if run.url:
        lines.append(f"  UI  {run.url}")
    if run.steps:
        # A list of runs does not wait for what it imports, every kind of job.
        from kfp_pytorch.cli.runs import screen

        lines += ["", *screen.rows([_row(step) for step in run.steps])]
    if run.status == "failed":
        lines += ["", *_failure(run, columns)]
    if run.alive:
        from kfp_pytorch.client.runs import going_on

        lines += ["", *textwrap.wrap(going_on(run), max(40, columns - 2), break_long_words=False)]
    return "\n".join(lines)


def _failure(run: Run, columns: int) -> list[str]:
    said = (run.diagnosis or run.error).splitlines()
    head = [f"{run.failed} failed:" if run.failed else "Why:"]
    cut = [f"    … {len(said) - _LINES} more lines in the step's log"] if len(said) > _LINES else []
    if cut:
        said = run.error.splitlines()
    width = max(40, columns - 4)
    words = [piece for line in said for piece in (textwrap.wrap(line, width) or [""])]
    return [*head, *(f"    {line}".rstrip() for line in words[: 2 * _LINES]), *cut]


def _row(step: Step) -> dict[str, object]:
    return {
        "name": step.name,
        "label": step.label,
        "status": "succeeded (cached)" if step.cached else step.status,
        "seconds": step.seconds,
        "attempts": step.attempts,
        "called": [],
    }


def runs(found: Sequence[Run]) -> str:
    """A table of runs."""
    rows = [(run.run_id, run.status, age(run.created), run.name) for run in found]
    return table(("ID", "STATUS", "AGE", "NAME"), rows)


def schedules(found: Sequence[Schedule]) -> str:
    """A table of schedules."""
    rows = [
        (each.name, "enabled" if each.enabled else "disabled", when(each), each.schedule_id)
        for each in found
    ]
    return table(("NAME", "STATUS", "WHEN", "ID"), rows)


def when(schedule: Schedule) -> str:
    """When a schedule starts runs, in a few words."""
    words = f"cron {schedule.cron}" if schedule.cron else f"every {duration(schedule.every_s)}"
    for word, time in (("from", schedule.start), ("until", schedule.end)):
        if time:
            words += f" {word} {time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return words


def age(created: datetime | None) -> str:
    """How long ago something was made."""
    if created is None:
        return ""
    return duration(max(0, int((datetime.now(UTC) - created).total_seconds())), coarse=True)


def duration(seconds: int, *, coarse: bool = False) -> str:
    """A duration such as `1d2h`; `coarse`: its first part alone."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:1] if coarse else parts) or "0s"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what is in them."""
    widths = [max(len(row[index]) for row in (heads, *rows)) for index in range(len(heads))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    )
