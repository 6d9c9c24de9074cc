"""Shows a run on a terminal: a line when a step starts and ends, and what it says in between."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
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
        """A step has started."""
        self._print(f"{step}: started")

    def line(self, step: str, text: str) -> None:
        """A step has written a line."""
        if step in self._inside_input:
            if text == "}":
                self._inside_input.discard(step)
            return
        if _EXECUTOR.match(text):
            if text.endswith(_EXECUTOR_INPUT):
                self._inside_input.add(step)
            return
        if text.strip():
            self._print(f"  {text}")

    def ended(self, result: StepResult) -> None:
        """A step has ended."""
        self._print(f"{result.name}: {result.status} in {result.seconds:.1f} s")

    def _print(self, text: str) -> None:
        click.echo(text, err=self.err)
