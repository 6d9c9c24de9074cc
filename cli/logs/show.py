"""Shows what was asked for; about it, in a line or two."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from kfp_pytorch.cli.logs import choice
from kfp_pytorch.cli.logs.choice import NotYet, Place
from kfp_pytorch.cli.logs.output import Collected, Output, Printed
from kfp_pytorch.cli.logs.source import Source, Step

_AGAIN_S = 0.2
_MOST_RUNS, _MOST_NODES = 20, 8
# How torchrun marks lines with the role and the local rank, such as `[default3]:`.
_MARK = re.compile(r"\[([A-Za-z_-]*)(\d+)\]:")
# torch itself marks lines so with the rank.
_GLOBAL = "rank"


def runs(rows: Sequence[tuple[str, ...]]) -> None:
    """Prints the newest runs, a row each."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows[:_MOST_RUNS]:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    if len(rows) > _MOST_RUNS:
        click.echo(f"and {len(rows) - _MOST_RUNS} older", err=True)


def runs_as_json(rows: Sequence[tuple[str, ...]]) -> None:
    """Prints all runs as one object."""
    # On a cluster a run may have several jobs, each of which is a row.
    names = ("run", "job", "status") if rows and len(rows[0]) > 2 else ("run", "status")
    click.echo(json.dumps({"runs": [dict(zip(names, row, strict=True)) for row in rows]}))


def show(source: Source, step: str, rank: int | None, *, follow: bool) -> None:
    """Prints the log of a rank, of a step, or what a person wants to see first.

    Raises click.ClickException: there is none of what was asked for.
    """
    _show(source, step, rank, Printed(), follow=follow)


def show_as_json(source: Source, step: str, rank: int | None, *, follow: bool) -> None:
    """Prints the same as one object, when it has ended.

    Raises click.ClickException: there is none of what was asked for.
    """
    out = Collected()
    if follow and rank is None and not step:
        with contextlib.redirect_stdout(sys.stderr):
            source.follow_all()
        follow = False
    _show(source, step, rank, out, follow=follow)
    out.print(run=source.title, steps=_as_json(source), error=source.error)


def _show(source: Source, step: str, rank: int | None, out: Output, *, follow: bool) -> None:
    if rank is None and not step:
        _overview(source, out, follow=follow)
        return
    told = False
    while True:
        try:
            if rank is None:
                _step(source, choice.step_of(source, step), out, follow=follow)
            else:
                _rank(source, choice.rank_of(source, step, rank), rank, out, follow=follow)
            return
        except NotYet as missing:
            if not follow or source.is_over():
                raise
            if not told:
                out.tell(f"Waiting. {missing.message}")
            told = True
        time.sleep(_AGAIN_S)


def _as_json(source: Source) -> list[dict[str, Any]]:
    steps = source.steps()
    return [
        {
            "step": label,
            "status": step.status,
            "nodes": _nodes(source, step),
        }
        for step, label in zip(steps, choice.labelled(steps), strict=True)
    ]


def _nodes(source: Source, step: Step) -> list[dict[str, str]]:
    job = step.job
    if job is None:
        return []
    there = source.pods(step).items()
    return [{"pod": job.pod(node), "ranks": job.ranks(node), "log": at} for node, at in there]


def listing(source: Source) -> str:
    """Lists the steps, and the nodes of their jobs that have logs."""
    steps = source.steps()
    labels = choice.labelled(steps)
    width = max(map(len, labels), default=0)
    lines = [source.title]
    for step, label in zip(steps, labels, strict=True):
        lines.append(f"  {label:<{width}}  {step.status}")
        if step.job:
            nodes = [f"{step.job.ranks(node)}: {at}" for node, at in source.pods(step).items()]
            more = [f"and {len(nodes) - _MOST_NODES} more nodes"] * (len(nodes) > _MOST_NODES)
            lines += [f"    {node}" for node in (*nodes[:_MOST_NODES], *more)]
    return "\n".join(lines)


def _overview(source: Source, out: Output, *, follow: bool) -> None:
    out.tell(listing(source))
    if follow:
        source.follow_all()
        return
    steps = source.steps()
    if failing := [step for step in steps if step.status == "failed"]:
        _step(source, failing[-1], out, follow=False)
        return
    with_logs = [step for step in steps if step.job and source.pods(step)]
    for step in with_logs:
        _node(source, step, out, follow=False)
    if not with_logs and steps:
        _step(source, steps[-1], out, follow=False)
    if source.error:
        out.tell(f"Outside of the steps: {source.error}")


def _step(source: Source, step: Step, out: Output, *, follow: bool) -> None:
    own = source.own_log(step, follow=follow)
    if own is None:
        _node(source, step, out, follow=follow)
        return
    label = choice.label_of(source, step)
    out.begin(f"The log of step {label}:", step=label)
    out.lines(own, follow=follow)


def _node(source: Source, step: Step, out: Output, *, follow: bool) -> None:
    """The log of the node that failed, else of the first one."""
    if step.job:
        failing = source.failing_node(step)
        node = min(source.pods(step), default=0) if failing is None else failing
        pod, ranks = step.job.pod(node), step.job.ranks(node)
        label = choice.label_of(source, step)
        out.begin(f"The log of {pod}, {ranks}:", step=label, pod=pod, ranks=ranks)
        if not out.lines(source.pod_log(step, node, follow=follow), follow=follow):
            out.tell(_without_lines(source, step, node))


def _rank(source: Source, place: Place, rank: int, out: Output, *, follow: bool) -> None:
    lines: Iterable[str] = source.pod_log(place.step, place.node, follow=follow)
    word = "" if place.alone else choice.word_on(place, rank)
    label = choice.label_of(source, place.step)
    out.begin(word, step=label, pod=place.job.pod(place.node), rank=rank)
    if not place.alone:
        lines = of_process(lines, place.process, rank)
    if not out.lines(lines, follow=follow):
        out.tell(_without_lines(source, place.step, place.node))


def _without_lines(source: Source, step: Step, node: int) -> str:
    how = source.pods(step).get(node)
    return f"It has no lines ({how})." if how else f"The pod is not there. {source.advice}"


def of_process(lines: Iterable[str], process: int, rank: int) -> Iterator[str]:
    """Leaves out the lines that torchrun or torch marks as those of another process."""
    for line in lines:
        mark = _MARK.match(line)
        if mark is None or int(mark[2]) == (rank if mark[1] == _GLOBAL else process):
            yield line
