"""Reads the events of a local run, step by step, and shows them on a terminal."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

import click

from kfp_pytorch.local.kfp.step import EVENT_MARK

_EXECUTOR = re.compile(r"\[KFP Executor [^]]*\]: ")
_EXECUTOR_INPUT = "Got executor_input:"


@dataclass
class StepResult:
    """One step of a run; a retried step has one for each attempt."""

    name: str  # the step's name
    status: str = "running"  # or `succeeded`, `failed`, `terminated`; `skipped` if it never ran
    seconds: float = 0.0  # how long it took
    exit_code: int = 0  # what its program ended with
    task: str = ""  # distinguishes the iterations of a loop; the same for each attempt
    message: str = ""  # what it wrote to its termination log
    stderr: str = ""  # the end of its stderr, when it failed
    parameters: dict[str, Any] = field(default_factory=dict)  # its output parameters by name
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)  # `uri`, `metadata`, `type`


@dataclass
class Followed:
    """The steps of a run, in the order in which they started, and how they ended."""

    steps: list[StepResult] = field(default_factory=list)
    error: str = ""  # what went wrong outside of a step; empty when nothing did

    @property
    def failed(self) -> StepResult | None:
        """The last step that failed, unless a later attempt succeeded."""
        done: set[tuple[str, str]] = set()
        for step in reversed(self.steps):
            task = (step.name, step.task)
            if step.status == "failed" and task not in done:
                return step
            if step.status == "succeeded":
                done.add(task)
        return None


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


class Follower:
    """Reads the runner's output line by line, so that an interruption loses nothing."""

    def __init__(self, progress: TerminalProgress) -> None:
        self.followed = Followed()
        self._progress = progress
        self._by_pod: dict[str, StepResult] = {}
        self._began: dict[str, float] = {}

    def take(self, line: str) -> None:
        """Take one line; those without an event's mark are kfp.local's own."""
        _, mark, text = line.partition(EVENT_MARK)
        if not mark:
            return
        event = json.loads(text)
        if event["event"] == "error":
            self.followed.error = event["message"]
        elif event["event"] == "started":
            result = StepResult(event["step"], task=event.get("task", ""))
            self._by_pod[event["pod"]] = result
            self._began[event["pod"]] = time.monotonic()
            self.followed.steps.append(result)
            self._progress.started(result.name)
        elif event["event"] == "line":
            self._progress.line(event["step"], event["text"])
        else:
            result = self._by_pod[event["pod"]]
            _end(result, event)
            self._progress.ended(result)

    def finish(self) -> Followed:
        """Mark each step that has not reported its end as terminated."""
        for pod, result in self._by_pod.items():
            if result.status == "running":
                result.status = "terminated"
                result.seconds = round(time.monotonic() - self._began[pod], 3)
        return self.followed


def _end(result: StepResult, event: dict[str, Any]) -> None:
    # A program may end with any code by itself, that of a termination included.
    ended = "failed" if event["exit"] else "succeeded"
    result.status = "terminated" if event["terminated"] else ended
    result.seconds = event["seconds"]
    result.exit_code = event["exit"]
    result.message = event["message"]
    result.stderr = event["stderr"]
    result.parameters = event["outputs"].get("parameters", {})
    result.artifacts = event["outputs"].get("artifacts", {})
