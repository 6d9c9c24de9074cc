"""Tells a person how a run on KFP goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kfp_pytorch.cli.runs.events import StepResult, TerminalProgress

if TYPE_CHECKING:
    from kfp_pytorch.client import Run, Step


class Progress:
    """Tells on a terminal which steps of a run begin and end, as of a local run."""

    def __init__(self, *, err: bool) -> None:
        self._terminal = TerminalProgress(err=err)
        self._err = err
        self._seen: dict[str, tuple[str, int]] = {}
        self._status = ""

    def tell(self, run: Run) -> None:
        """Tells what is new."""
        if run.status != self._status and run.status in ("pending", "terminating"):
            click.echo(f"The run is {run.status}.", err=self._err)
        self._status = run.status
        for step in run.steps:
            self._tell_step(step)

    def _tell_step(self, step: Step) -> None:
        before, attempts = self._seen.get(step.label, ("", 0))
        self._seen[step.label] = (step.status, step.attempts)
        result = StepResult(step.name, step.status, step.seconds, label=step.label)
        result.attempt = max(1, step.attempts)
        ended = step.status in ("succeeded", "failed")
        if step.cached:
            click.echo(f"{step.label}: taken from the cache", err=self._err)
        elif step.status == "running" and (before != "running" or step.attempts > attempts > 0):
            self._terminal.started(result)
        elif ended and before != step.status:
            if before not in ("running",) and step.attempts:
                self._terminal.started(result)
            self._terminal.ended(result)
