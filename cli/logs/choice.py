"""Finds the step, and the rank of its job, that a person names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from kfp_pytorch.cli.logs.source import Source, Step
from kfp_pytorch.cli.runs import labels
from kfp_pytorch.cli.runs.jobs import Job
from kfp_pytorch.launcher.text import some

_MOST = 12


class NotYet(click.ClickException):
    """What was asked for is not there, and may still come."""


@dataclass(frozen=True)
class Place:
    """Where a rank's lines are."""

    step: Step
    job: Job
    node: int  # the number of its node
    process: int  # the number of its process there
    alone: bool  # whether the pod's log has no other process's lines


def labelled(steps: Sequence[Step]) -> list[str]:
    """Returns the label of each step."""
    return labels.labels([(step.name, step.inputs) for step in steps])


def label_of(source: Source, step: Step) -> str:
    """Returns the label of one of the steps."""
    steps = source.steps()
    known = zip(steps, labelled(steps), strict=True)
    return next(label for each, label in known if each.is_task_of(step))


def step_of(source: Source, asked: str) -> Step:
    """Finds the one step of a name.

    Raises click.ClickException: there is none, or more than one. Raises NotYet: it may still start.
    """
    return _only(source, _named(source, asked), f"--step {asked}")


def rank_of(source: Source, asked: str, rank: int) -> Place:
    """Finds where a rank of a step's job writes; of the only job where no step is named.

    Raises click.ClickException: no job is meant, or more than one, or the job has no such rank.
    Raises NotYet: the step may still start, or the pod.
    """
    of = f"--step {asked}" if asked else f"--rank {rank}"
    found = _named(source, asked) if asked else source.steps()
    with_job = [step for step in found if step.job]
    if not with_job:
        error = NotYet if not found or (not asked and source.to_come) else click.ClickException
        what = "The step makes no job" if asked else "No step of it has made a job"
        raise error(f"{source.title}: {of}: {what}, whose processes would have ranks.")
    step = _only(source, with_job, of)
    job, there = step.job, source.pods(step)
    assert job is not None  # noqa: S101 (it is one of those with a job)
    place = _place(source, step, job, rank)
    if place.node not in there:
        raise NotYet(
            f"{source.title}: --rank {rank}: the pod {job.pod(place.node)} has no log. Those that "
            f"have one: {_ranks(job, there)}. {source.advice}".rstrip()
        )
    return place


def _named(source: Source, asked: str) -> list[Step]:
    steps = source.steps()
    found = [steps[i] for i in labels.matches([(s.name, s.inputs) for s in steps], asked)]
    if not found:
        called, _, which = asked.partition(":")
        same = [step for step in steps if step.is_called(asked) or step.is_called(called)]
        tasks = [("", step.inputs) for step in same]
        found = [same[i] for i in labels.matches(tasks, f":{which}" if which else "")]
    if found:
        return found
    known = labelled(steps)
    name = asked.partition(":")[0].replace("_", "-")
    may_come = any(name == other.replace("_", "-") for other in source.to_come)
    if may_come and not source.is_over():
        raise NotYet(f"{source.title}: --step {asked}: it has not started. {_there_are(known)}")
    raise click.ClickException(f"{source.title} has no step {asked!r}. {_there_are(known)}")


def _only(source: Source, found: Sequence[Step], asked: str) -> Step:
    if len(found) == 1:
        return found[0]
    every = source.steps()
    known = [label for step, label in zip(every, labelled(every), strict=True) if step in found]
    name = found[0].name
    is_all = [step.name for step in found] == [step.name for step in every if step.name == name]
    numbered = f" {name}:1 to {name}:{len(found)} name them in this order." if is_all else ""
    raise click.ClickException(
        f"{source.title}: {asked} may be any of {len(found)} steps; name one with --step: "
        f"{some(known, _MOST)}.{numbered}"
    )


def _place(source: Source, step: Step, job: Job, rank: int) -> Place:
    if not job.processes and job.nodes > 1:
        raise click.ClickException(
            f"{source.title}: --rank {rank}: the node of a rank is not known, as the job's "
            f"nproc_per_node is no number. Give it one, or read the logs of its nodes: "
            f"{_ranks(job, source.pods(step))}."
        )
    processes = job.processes or rank + 1
    if rank >= job.nodes * processes:
        raise click.ClickException(
            f"{source.title}: --rank {rank}: {job.name} has the ranks 0 to "
            f"{job.nodes * processes - 1}, of {job.nodes} x {processes} processes."
        )
    return Place(step, job, rank // processes, rank % processes, job.processes == 1)


def _ranks(job: Job, there: Mapping[int, str]) -> str:
    return some([f"{job.ranks(node)} ({at})" for node, at in there.items()], _MOST) or "none"


def _there_are(known: Sequence[str]) -> str:
    return f"There are: {some(known, _MOST)}." if known else "None has started."


def word_on(place: Place, rank: int) -> str:
    """Says whose lines are shown where several processes write one log."""
    many = f"the {place.job.processes} processes" if place.job.processes else "all processes"
    return (
        f"Rank {rank} is process {place.process} of node {place.node}. This is the log of {many} "
        f"of {place.job.pod(place.node)}, without the lines that torchrun marks as another's; "
        "torchrun --tee 3 has it mark them all."
    )
