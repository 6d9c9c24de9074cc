"""Prints what was asked for; about it, on stderr, in a line or two."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import click

from kfp_pytorch.cli.logs import choice
from kfp_pytorch.cli.logs.choice import NotYet, Place
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


def show(source: Source, step: str, rank: int | None, *, follow: bool) -> None:
    """Prints the log of a rank, of a step, or what a person wants to see first.

    Raises click.ClickException: there is none of what was asked for.
    """
    if rank is None and not step:
        _overview(source, follow=follow)
        return
    told = False
    while True:
        try:
            if rank is None:
                _step(source, choice.step_of(source, step), follow=follow)
            else:
                _rank(source, choice.rank_of(source, step, rank), rank, follow=follow)
            return
        except NotYet as missing:
            if not follow or source.is_over():
                raise
            if not told:
                _tell(f"Waiting. {missing.message}")
            told = True
        time.sleep(_AGAIN_S)


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


def _overview(source: Source, *, follow: bool) -> None:
    click.echo(listing(source), err=True)
    if follow:
        source.follow_all()
        return
    steps = source.steps()
    if failing := [step for step in steps if step.status == "failed"]:
        _step(source, failing[-1], follow=False)
        return
    with_logs = [step for step in steps if step.job and source.pods(step)]
    for step in with_logs:
        _node(source, step, follow=False)
    if not with_logs and steps:
        _step(source, steps[-1], follow=False)
    if source.error:
        _tell(f"Outside of the steps: {source.error}")


def _step(source: Source, step: Step, *, follow: bool) -> None:
    own = source.own_log(step, follow=follow)
    if own is None:
        _node(source, step, follow=follow)
        return
    _tell(f"The log of step {choice.label_of(source, step)}:")
    _print(own, follow=follow)


def _node(source: Source, step: Step, *, follow: bool) -> None:
    """The log of the node that failed, else of the first one."""
    if step.job:
        failing = source.failing_node(step)
        node = min(source.pods(step), default=0) if failing is None else failing
        _tell(f"The log of {step.job.pod(node)}, {step.job.ranks(node)}:")
        if not _print(source.pod_log(step, node, follow=follow), follow=follow):
            _tell(_without_lines(source, step, node))


def _rank(source: Source, place: Place, rank: int, *, follow: bool) -> None:
    lines: Iterable[str] = source.pod_log(place.step, place.node, follow=follow)
    if not place.alone:
        _tell(choice.word_on(place, rank))
        lines = of_process(lines, place.process, rank)
    if not _print(lines, follow=follow):
        _tell(_without_lines(source, place.step, place.node))


def _without_lines(source: Source, step: Step, node: int) -> str:
    how = source.pods(step).get(node)
    return f"It has no lines ({how})." if how else f"The pod is not there. {source.advice}"


def of_process(lines: Iterable[str], process: int, rank: int) -> Iterator[str]:
    """Leaves out the lines that torchrun or torch marks as those of another process."""
    for line in lines:
        mark = _MARK.match(line)
        if mark is None or int(mark[2]) == (rank if mark[1] == _GLOBAL else process):
            yield line


def _tell(text: str) -> None:
    # What was printed before comes before it where both go to one place.
    sys.stdout.flush()
    click.echo(text, err=True)


def _print(lines: Iterable[str], *, follow: bool) -> bool:
    """Prints lines; whether there were any."""
    some = False
    for line in lines:
        some = True
        sys.stdout.write(f"{line}\n")
        if follow:
            sys.stdout.flush()
    sys.stdout.flush()
    return some
