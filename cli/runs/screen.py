"""The summary at the end of a run for a person: an ordinary one fits a screen of 24 lines."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_pytorch.cli.runs.summary import headline
from kfp_pytorch.launcher.text import cut
from kfp_pytorch.local import lifecycle

# Columns between which a terminal's own number counts.
_NARROWEST, _WIDEST = 40, 120
# What of each part is shown, in lines; the rest is in the file of the summary.
_MESSAGE_LINES, _STEPS, _JOBS, _NODES, _FILES = 5, 8, 6, 4, 6
_REPORT_ROWS = ("Nodes × processes", "GPUs a node", "Restarts", "Training took")
# For programs; the summary shows their content elsewhere.
_NOT_SHOWN = {
    *("metrics", "latencies", "model", "mlpipeline_ui_metadata", "how_to_open"),
    *("checkpoints", "tensorboard"),
}
# Metrics of the machine and not of the model: the report has them.
_OF_THE_MACHINE = ("samples_per_second",)
_BESIDE = ("checkpoints", "export")
_ITERATION = re.compile(r"iteration-\d+")
Row = tuple[str, str]


def text(summary: dict[str, Any], seconds: float, *, kept: bool, columns: int = 80) -> str:
    """Writes what `summarise` returned.

    `seconds`: how long the run took. `kept`: whether the endpoint stays up. `columns`: those of
    the terminal. Paths and commands are not broken apart: they are to be copied.
    """
    width = min(max(columns, _NARROWEST), _WIDEST) - 2
    parts = [
        [f"{summary['pipeline']} {summary['status']} in {seconds:.1f} s"],
        _failure(summary, width),
        _steps(summary),
        [
            *_table(summary["jobs"], width),
            *_aligned([*_details(summary, kept, width), *_logs(summary)]),
        ],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def logs_command(summary: dict[str, Any]) -> str:
    """Returns the command that shows the run's logs; empty where no run was made."""
    if not summary["run"]:
        return ""
    place = Path(summary["place"])
    at_home = place.parent.parent == lifecycle.default_root()
    return f"kfp-pytorch logs {shlex.quote(summary['run']) if at_home else short(place)}"


def hints(summary: dict[str, Any]) -> list[str]:
    """Returns what a person can do after a run that a signal ended, a line each."""
    return _aligned([("logs", logs_command(summary)), *_resume(summary)])


def short(path: Path | str) -> str:
    """Writes a path as a shell takes it, with `~` for the home."""
    home = f"{os.environ.get('HOME') or '/nonexistent'}/"
    written = str(path)
    if written.startswith(home):
        return f"~/{shlex.quote(written.removeprefix(home))}"
    return shlex.quote(written)


def _failure(summary: dict[str, Any], width: int) -> list[str]:
    """The failing step with its message in short, or what went wrong outside of a step."""
    if not summary["error"]:
        return []
    said = headline(summary["error"]).strip()
    whole = [piece for line in said.splitlines() for piece in textwrap.wrap(line, width - 4)]
    lines = [f"    {line}" for line in whole[:_MESSAGE_LINES]]
    if len(whole) > _MESSAGE_LINES:
        lines[-1] += " …"
    failed = summary["failed"]
    if not failed:
        return lines
    if len(whole) > _MESSAGE_LINES or summary["error"].partition("\n")[2].strip() != said:
        lines.append(f"    All of it: {logs_command(summary)} --step {shlex.quote(failed)}")
    last = next(s for s in summary["steps"] if s["label"] == failed)
    return [_row(last, len(failed)), *lines]


def _steps(summary: dict[str, Any]) -> list[str]:
    """The other steps."""
    return rows([step for step in summary["steps"] if step["label"] != summary["failed"]])


def rows(steps: Sequence[dict[str, Any]]) -> list[str]:
    """Writes steps, one a line; those of a loop together, where they are many.

    Of each step: `name`, `label`, `status`, `seconds`, `attempts`, and `called`, its other names.
    """
    width = max((len(step["label"]) for step in steps), default=0)
    lines = [_row(step, width) for step in steps]
    if len(lines) <= _STEPS:
        return lines
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for step in steps:
        groups.setdefault((step["name"], _state(step)), []).append(step)
    return [
        f"  {f'{name}, {len(same)} times' if len(same) > 1 else same[0]['label']}  {status}"
        for (name, status), same in groups.items()
    ]


def _row(step: dict[str, Any], width: int) -> str:
    took = f"{step['seconds']:6.1f} s" if step["status"] != "skipped" else " " * 8
    called = f"  ({', '.join(step['called'])})" if step["called"] else ""
    return f"  {step['label']:<{width}}  {took}  {_state(step)}{called}"


def _state(step: dict[str, Any]) -> str:
    after = f" after {step['attempts']} attempts" if step["attempts"] > 1 else ""
    return f"{step['status']}{after}"


def _table(jobs: Sequence[dict[str, Any]], width: int) -> list[str]:
    """What the reports of the jobs say in short, and their metrics, one job a line.

    What was submitted, in JSON, is in the reports alone.
    """
    rows = [_cells(job) if len(jobs) == 1 else {"Job": job["step"]} | _cells(job) for job in jobs]
    rows = rows if any(_cells(job) for job in jobs) else []
    heads = _heads(rows, width)
    wide = {head: max(len(row.get(head, "")) for row in ({head: head}, *rows)) for head in heads}
    lines = [
        "  ".join(f"{row.get(head, ''):<{wide[head]}}" for head in heads).rstrip()
        for row in ({head: head for head in heads}, *rows[:_JOBS])
    ]
    more = [f"and {len(rows) - _JOBS} more jobs"] if len(rows) > _JOBS else []
    return [f"  {line}" for line in (*lines, *more)] if rows else []


def _heads(rows: Sequence[dict[str, str]], width: int) -> list[str]:
    """As many columns as fit."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    widths = (max(len(row.get(head, "")) for row in ({head: head}, *rows)) + 2 for head in heads)
    ends = itertools.accumulate(widths)
    return [head for head, end in zip(heads, ends, strict=True) if end <= width]


def _cells(job: dict[str, Any]) -> dict[str, str]:
    report, metrics = job["report"], job["metrics"]
    shown = {name: report[name] for name in _REPORT_ROWS if report.get(name, "0") != "0"}
    return shown | {name: f"{value:.4g}" for name, value in _of_the_model(metrics).items()}


def _of_the_model(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in _OF_THE_MACHINE}


def _details(summary: dict[str, Any], kept: bool, width: int) -> list[Row]:
    details = []
    metrics = _of_the_model(summary["metrics"])
    if metrics.keys() - set(_heads([_cells(job) for job in summary["jobs"]], width)):
        shown = (f"{name} {value:.4g}" for name, value in metrics.items())
        details.append(("metrics", cut(", ".join(shown), 2 * width)))
    details += [*_files(summary, width), *_folders(summary)]
    if summary["endpoint"]:
        gone = "ended with this command; --keep leaves it up"
        details.append(("endpoint", summary["endpoint"] if kept else gone))
    if summary["prediction"]:
        details.append(("prediction", cut(json.dumps(summary["prediction"]), width - 14)))
    return details


def _files(summary: dict[str, Any], width: int) -> list[Row]:
    """The pages and files of the run: below its folder, by their paths there."""
    artifacts = summary["artifacts"].items()
    kinds = ((name, name.rpartition(".")[2], at) for name, at in artifacts)
    files = [(name, at) for name, kind, at in kinds if kind not in _NOT_SHOWN]
    below = f"{summary['place']}/"
    inside = [at.removeprefix(below) for _, at in files if at.startswith(below)]
    rows = [(name, at) for name, at in files if not at.startswith(below)]
    if inside:
        # Those of a loop's iterations together.
        inside = list(dict.fromkeys(_ITERATION.sub("iteration-*", path) for path in inside))
        more = len(inside) - _FILES
        shown = ", ".join(inside[:_FILES]) + (f" and {more} more" if more > 0 else "")
        lines = textwrap.wrap(shown, width - 14, break_long_words=False, break_on_hyphens=False)
        rows.insert(0, ("files", "\n".join([f"in {short(summary['place'])}:", *lines])))
    return rows


def _folders(summary: dict[str, Any]) -> list[Row]:
    """Where the job's logs for TensorBoard, its model and its folder are; of jobs, of all."""
    artifacts = summary["artifacts"].items()
    logs = [at for name, at in artifacts if name.rpartition(".")[2] == "tensorboard"]
    rows = []
    if logs:
        alone = len(logs) == 1 or "://" in logs[0]
        folder = logs[0] if alone else os.path.commonpath(logs)
        rows = [("tensorboard", f"tensorboard --logdir {short(folder)}")]
    folder, uri = summary["folder"], summary["model"]["storage_uri"]
    jobs = summary["jobs"]
    if len(jobs) > 1:
        return [*rows, ("folders", f"by job in {short(Path(summary['place'], 'summary.json'))}")]
    if jobs and (on_disk := Path(jobs[0]["folder"])).is_dir():
        there = [name for name in _BESIDE if (on_disk / name).is_dir()]
        if logs:
            beside = f"\nbeside it: {', '.join(there)}" if there else ""
            return [("tensorboard", rows[0][1] + beside)]
        has = f"\nhas {', '.join(there)}" if there else ""
        return [("job's folder", short(on_disk) + has)]
    if uri:
        return [*rows, ("model at", uri)]
    return [*rows, ("job's folder", folder)] if folder else rows


def _logs(summary: dict[str, Any]) -> list[Row]:
    """The command that shows the logs, and where that of each rank is."""
    command = logs_command(summary)
    if not command:
        return []
    nodes = [node for job in summary["jobs"] for node in job["logs"]]
    if not nodes:
        elsewhere = any(job["elsewhere"] for job in summary["jobs"])
        pods = "\n  with --kubeconfig FILE: of ranks, while their pods exist" if elsewhere else ""
        return [("logs", f"{command} --step STEP{pods}"), *_resume(summary)]
    root = Path(summary["place"]).parent.parent / "logs"
    lines = [command, f"  with --step STEP, --rank N or -f; of ranks in {short(root)}:"]
    if len(summary["jobs"]) == 1:
        shown = [f"{node['ranks']}: {_pattern(node['path'], root)}" for node in nodes[:_NODES]]
        more = [f"and of {len(nodes) - _NODES} more nodes"] if len(nodes) > _NODES else []
        lines += [f"  {line}" for line in (*shown, *more)]
    else:
        lines[1] = lines[1].removesuffix(":")
    rows = [("logs", "\n".join(lines))]
    return [*rows, *_resume(summary)]


def _resume(summary: dict[str, Any]) -> list[Row]:
    """How an unfinished job goes on, where it wrote a checkpoint."""
    unfinished = [job for job in summary["jobs"] if job["status"] != "succeeded"]
    if summary["status"] == "succeeded" or not any(job["checkpoints"] for job in unfinished):
        return []
    return [("resume", "the same command with --resume goes on from the last checkpoint")]


def _pattern(path: str, root: Path) -> str:
    """The files of a node's log, of all of its starts, as a pattern that a shell takes."""
    pod, container, _ = Path(path).relative_to(root).parts
    return f"{pod.rpartition('_')[0]}_*/{container}/*.log"


def _aligned(rows: Sequence[Row]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        first, *others = value.split("\n")
        lines += [f"  {name:<{width}}  {first}", *(f"  {'':<{width}}  {each}" for each in others)]
    return lines
