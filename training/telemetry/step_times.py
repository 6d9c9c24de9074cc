"""The time of each phase of a step: data, forward and backward, communication, optimizer.

A mark ends a phase. On a GPU a mark is an event, and events are read when a report is due, after
the device has reached them: measuring never waits for it. So `data` is the time that the GPU waited
for input, not the time of loading in parallel. On a CPU a mark is a time.

`communication` is the part of the gradients' exchange that overlaps with nothing: the rest of
backward after the last gradient. Waiting for a slower rank is part of it.
"""

from __future__ import annotations

import itertools
import time

import torch
from torch import Tensor, nn

TIMES = "step_seconds/"
DATA = "data"
COMPUTE = "forward_backward"
COMMUNICATION = "communication"
OPTIMIZER = "optimizer"
# Marks that are kept before they are added up.
_MOST_MARKS = 512

Mark = tuple[str | None, float | torch.cuda.Event]


class StepTimer:
    """Adds up the phases of steps; see the module."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[Mark] = []
        self._spare: list[torch.cuda.Event] = []
        self._sums: dict[str, float] = {}
        self._steps = 0
        self._exchanging = False

    def watch_exchange(self, model: nn.Module) -> None:
        """Separates communication from backward, which ends with the first parameter."""
        first = next((p for p in model.parameters() if p.requires_grad), None)
        if first is not None:
            first.register_post_accumulate_grad_hook(self._last_gradient)  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """A row of steps begins: the time since the last mark belongs to none of them."""
        self._mark(None)

    def mark(self, phase: str) -> None:
        """Ends a phase: `DATA`, `COMPUTE` or `OPTIMIZER`, which also ends the step."""
        if phase == COMPUTE and self._exchanging:
            phase = COMMUNICATION
        self._exchanging = False
        self._mark(phase)

    def take(self) -> dict[str, float]:
        """Mean seconds of each phase that the device has ended since the last call."""
        self._add_up()
        sums, steps = self._sums, self._steps
        self._sums, self._steps = {}, 0
        return {phase: seconds / steps for phase, seconds in sums.items()} if steps else {}

    def _last_gradient(self, _parameter: Tensor) -> None:
        self._mark(COMPUTE)
        self._exchanging = True

    def _mark(self, phase: str | None) -> None:
        if len(self._marks) >= _MOST_MARKS:
            self._add_up()
        self._marks.append((phase, self._now()))

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _add_up(self) -> None:
        """Adds the phases that the device has ended; the last mark begins the next phase."""
        done = 0
        for before, mark in itertools.pairwise(self._marks):
            if not _is_reached(mark):
                break
            done += 1
            at = before[1]
            if mark[0] is not None:
                self._sums[mark[0]] = self._sums.get(mark[0], 0.0) + _between(at, mark[1])
                self._steps += mark[0] == OPTIMIZER
            if isinstance(at, torch.cuda.Event):
                self._spare.append(at)
        del self._marks[:done]


def _is_reached(mark: Mark) -> bool:
    return isinstance(mark[1], float) or bool(mark[1].query())  # type: ignore[no-untyped-call]


def _between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float) or isinstance(end, float):
        return float(end) - float(start)  # type: ignore[arg-type]
    return float(start.elapsed_time(end)) / 1000
