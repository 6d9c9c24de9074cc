"""Prints what was asked for; about it, on stderr, in a line or two."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator

import click

from kfp_pytorch.cli.logs import choice
from kfp_pytorch.cli.logs.choice import NotYet, Place
from kfp_pytorch.cli.logs.source import Source, Step

_AGAIN_S = 0.2
# How torchrun marks lines with the role and the local rank, such as `[default3]:`.
_MARK = re.compile(r"\[([A-Za-z_-]*)(\d+)\]:")
# torch itself marks lines so with the rank.
_GLOBAL = "rank"


def show(source: Source, step: str, rank: int | None, *, follow: bool) -> None:
    """Prints the log of a rank, of a step, or what a person wants to see first.

    Raises click.ClickException: there is none of what was asked for.
    """
    if rank is None and not step:
        _overview(source, follow=follow)
        return
    while True:
        try:
            if rank is None:
                _step(source, choice.step_of(source, step), follow=follow)
            else:
                _rank(source, choice.rank_of(source, step, rank), rank, follow=follow)
            return
        except NotYet:
            if not follow or source.is_over():
                raise
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
            lines += [f"    {step.job.ranks(node)}: {at}" for node, at in source.pods(step).items()]
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
    with_logs = [step for step in steps if step.job and 0 in source.pods(step)]
    for step in with_logs:
        _node(source, step, source.failing_node(step) or 0, follow=False)
    if not with_logs and steps:
        _step(source, steps[-1], follow=False)


def _step(source: Source, step: Step, *, follow: bool) -> None:
    own = source.own_log(step, follow=follow)
    if own is None:
        _node(source, step, source.failing_node(step) or 0, follow=follow)
        return
    _tell(f"The log of step {step.name}:")
    _print(own, follow=follow)


def _node(source: Source, step: Step, node: int, *, follow: bool) -> None:
    if step.job:
        _tell(f"The log of {step.job.pod(node)}, {step.job.ranks(node)}:")
        _print(source.pod_log(step, node, follow=follow), follow=follow)


def _rank(source: Source, place: Place, rank: int, *, follow: bool) -> None:
    lines: Iterable[str] = source.pod_log(place.step, place.node, follow=follow)
    if not place.alone:
        _tell(choice.word_on(place, rank))
        lines = of_process(lines, place.process, rank)
    _print(lines, follow=follow)


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


def _print(lines: Iterable[str], *, follow: bool) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
        if follow:
            sys.stdout.flush()
    sys.stdout.flush()
