"""Reads the events of a local run, step by step, and shows them on a terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from kfp_pytorch.cli.runs import labels
from kfp_pytorch.local.kfp.step import EVENT_MARK

_EXECUTOR = re.compile(r"\[KFP Executor [^]]*\]: ")
_EXECUTOR_INPUT = "Got executor_input:"
# In the paths of what kfp.local keeps of a task in a loop.
_ITERATION = "-iteration-"


@dataclass
class StepResult:
    """One step of a run; a retried step has one for each attempt."""

    name: str  # the step's name
    status: str = "running"  # or `succeeded`, `failed`, `terminated`; `skipped` if it never ran
    seconds: float = 0.0  # how long it took
    exit_code: int = 0  # what its program ended with
    task: str = ""  # distinguishes the iterations of a loop; the same for each attempt
    pod: str = field(default="", compare=False)  # distinguishes the attempts
    function: str = ""  # the function of its component, such as `pytorch_job`
    inputs: dict[str, Any] = field(default_factory=dict)  # its input parameters by name
    component: str = ""  # where it is a distributed one, what its step is told of it
    message: str = ""  # what it wrote to its termination log
    stderr: str = ""  # the end of its stderr, when it failed
    parameters: dict[str, Any] = field(default_factory=dict)  # its output parameters by name
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)  # `uri`, `metadata`, `type`
    attempt: int = field(default=1, compare=False)  # which one this is, from 1
    attempts: int = field(default=1, compare=False)  # how many the pipeline allows
    label: str = field(default="", compare=False)  # as far as the tasks are known that have started


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


class ExecutorLines:
    """Knows KFP's own lines about how it starts a function, which tell a person nothing."""

    def __init__(self) -> None:
        self._inside_input: set[str] = set()

    def has(self, step: str, text: str) -> bool:
        """Whether the next line of a step is one of them."""
        # They are on stderr; what the program writes to stdout may be read in between.
        if step in self._inside_input and text[:1] in ("{", " ", "}"):
            if text == "}":
                self._inside_input.discard(step)
            return True
        if text.endswith(_EXECUTOR_INPUT) and _EXECUTOR.match(text):
            self._inside_input.add(step)
        return _EXECUTOR.match(text) is not None


class TerminalProgress:
    """Writes progress as plain lines, which a log file takes as well as a terminal.

    KFP's own lines about how it starts a function are left out.
    """

    def __init__(self, *, err: bool) -> None:
        self.err = err
        self._executor = ExecutorLines()

    def started(self, result: StepResult) -> None:
        """A step has started."""
        again = result.attempt > 1
        self._print(f"{result.label or result.name}: started{_attempt(result) if again else ''}")

    def line(self, result: StepResult, text: str) -> None:
        """A step has written a line."""
        if not self._executor.has(result.pod, text) and text.strip():
            # Iterations of a loop write at the same time.
            whose = f"{result.label} | " if result.label not in ("", result.name) else ""
            self._print(f"  {whose}{text}")

    def ended(self, result: StepResult) -> None:
        """A step has ended."""
        attempt = _attempt(result) if result.status != "succeeded" or result.attempt > 1 else ""
        label = result.label or result.name
        self._print(f"{label}: {result.status} in {result.seconds:.1f} s{attempt}")

    def _print(self, text: str) -> None:
        click.echo(text, err=self.err)


def _attempt(result: StepResult) -> str:
    of = max(result.attempt, result.attempts)
    return f" (attempt {result.attempt} of {of})" if of > 1 else ""


class Follower:
    """Reads the runner's output line by line, so that an interruption loses nothing.

    `attempts`: how many the pipeline allows, by the step's name, where it is more than one.
    """

    def __init__(
        self, progress: TerminalProgress, attempts: Mapping[str, int] | None = None
    ) -> None:
        self.followed = Followed()
        self._progress = progress
        self._attempts = attempts or {}
        self._starts: list[StepResult] = []  # not shown yet
        self._by_pod: dict[str, StepResult] = {}
        self._began: dict[str, float] = {}

    def take(self, line: str) -> None:
        """Take one line; those without an event's mark are kfp.local's own."""
        _, mark, text = line.partition(EVENT_MARK)
        if not mark:
            return
        event = json.loads(text)
        if event["event"] != "started":
            self._show_starts()
        if event["event"] == "error":
            self.followed.error = event["message"]
        elif event["event"] == "started":
            result = StepResult(
                event["step"],
                task=event.get("task", ""),
                pod=event["pod"],
                function=event.get("function", ""),
                inputs=event.get("inputs", {}),
                component=event.get("component", ""),
            )
            self._by_pod[event["pod"]] = result
            self._began[event["pod"]] = time.monotonic()
            self._add(result)
            self._starts.append(result)
            # Only those that start with it tell the first iteration of a loop apart.
            if _ITERATION not in result.task or result.label != result.name:
                self._show_starts()
        elif event["event"] == "line":
            self._progress.line(self._by_pod[event["pod"]], event["text"])
        else:
            result = self._by_pod[event["pod"]]
            _end(result, event)
            self._progress.ended(result)

    def _show_starts(self) -> None:
        for result in self._starts:
            self._progress.started(result)
        self._starts.clear()

    def _add(self, result: StepResult) -> None:
        """Numbers an attempt, and labels all tasks of its step: one more may tell them apart."""
        self.followed.steps.append(result)
        same = [step for step in self.followed.steps if step.name == result.name]
        result.attempt = sum(step.task == result.task for step in same)
        result.attempts = self._attempts.get(result.name, 1)
        tasks = {step.task: step for step in same}
        made = labels.labels([(step.name, step.inputs) for step in tasks.values()])
        known = dict(zip(tasks, made, strict=True))
        for step in same:
            step.label = known[step.task]

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
