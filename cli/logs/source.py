"""What a run has that can be shown, wherever it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kfp_pytorch.cli.runs.jobs import Job

NEWEST = 5
"""How many runs a message names."""


@dataclass(frozen=True)
class Step:
    """A task of a run, over all of its attempts; on a cluster, what is known of it by its job."""

    name: str  # the step's name
    status: str  # as in a run's summary
    job: Job | None  # the job that it makes
    task: str = ""  # distinguishes it from other tasks of the step
    inputs: Mapping[str, Any] = field(default_factory=dict)  # its input parameters by name
    display: str = ""  # the name that `set_display_name` gave it

    def is_called(self, asked: str) -> bool:
        """Whether a name is its display name, or the `name` of its job."""
        return asked in (self.display, self.inputs.get("name")) and bool(asked)

    def is_task_of(self, other: Step) -> bool:
        """Whether both are one task, perhaps at different times."""
        return (self.name, self.task) == (other.name, other.task)


class Source(Protocol):
    """A run's steps and their logs."""

    @property
    def advice(self) -> str:
        """What to do where a pod has no log; or empty."""

    @property
    def error(self) -> str:
        """What went wrong outside of the steps; or empty."""

    @property
    def title(self) -> str:
        """What a person calls the run, and where it is."""

    @property
    def to_come(self) -> frozenset[str]:
        """The names of steps that may still start."""

    def steps(self) -> list[Step]:
        """The steps that have started, in the order in which they did."""

    def is_over(self) -> bool:
        """Whether nothing more of the run will be written."""

    def own_log(self, step: Step, *, follow: bool) -> Iterator[str] | None:
        """The lines of a step's own log; None where it is not to be had."""

    def pods(self, step: Step) -> Mapping[int, str]:
        """The nodes of a step's job that have logs, with where these lie or how the pods are."""

    def failing_node(self, step: Step) -> int | None:
        """The node whose pod failed, where the log of that pod says more than the step's own."""

    def pod_log(self, step: Step, node: int, *, follow: bool) -> Iterator[str]:
        """The lines of what is kept of a node's log, that of earlier starts first."""

    def follow_all(self) -> None:
        """Prints what its steps write until the run has ended."""
