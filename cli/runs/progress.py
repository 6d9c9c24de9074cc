"""Shows a run on a terminal: a line when a step starts and ends, and what it says in between."""

from __future__ import annotations

import re

import click

from kfp_pytorch.cli.runs.events import StepResult

_EXECUTOR = re.compile(r"\[KFP Executor [^]]*\]: ")
_EXECUTOR_INPUT = "Got executor_input:"


class TerminalProgress:
    """Writes progress as plain lines, which a log file takes as well as a terminal.

    KFP's own lines about how it starts a function are left out.
    """

    def __init__(self, *, err: bool) -> None:
        self.err = err
        self._inside_input: set[str] = set()

    def started(self, step: str) -> None:
        """Say that a step has started."""
        self._say(f"{step}: started")

    def line(self, step: str, text: str) -> None:
        """Show a line of a step."""
        if step in self._inside_input:
            if text == "}":
                self._inside_input.discard(step)
            return
        if _EXECUTOR.match(text):
            if text.endswith(_EXECUTOR_INPUT):
                self._inside_input.add(step)
            return
        if text.strip():
            self._say(f"  {text}")

    def ended(self, result: StepResult) -> None:
        """Say how a step has ended, and after how long."""
        self._say(f"{result.name}: {result.status} in {result.seconds:.1f} s")

    def _say(self, text: str) -> None:
        click.echo(text, err=self.err)
