"""What the launcher knows of a job's state, whatever its kind. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kfp_pytorch.launcher.kubernetes.objects import Object


class Phase(Enum):
    """Where a job is in its life."""

    UNACKNOWLEDGED = "unacknowledged"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the phase is terminal."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True)
class JobState:
    """A job's state."""

    phase: Phase  # where it is in its life
    reason: str = ""  # the reason of the condition that says so, or empty
    message: str = ""  # the message of that condition, or empty
    since: str = ""  # the condition's last transition, as the cluster wrote it, or empty
    deleting: bool = False  # whether it is terminating
    warning: str = ""  # what a person must know of a success, or empty

    @property
    def past_deadline(self) -> bool:
        """Whether the operator ended the job by a deadline."""
        return self.phase is Phase.FAILED and "deadline" in f"{self.reason} {self.message}".lower()


def true_conditions(conditions: list[Object], terminal: tuple[str, ...]) -> dict[str, Object]:
    """Find the conditions whose status is "True", by type; their place in the list means nothing.

    `conditions`: the conditions of a job. There should be one of a type; of several, the one that
    changed last counts.
    """
    found: dict[str, Object] = {}
    for condition in sorted(conditions, key=lambda c: (_changed(c), _is_true(c))):
        kind = str(condition.get("type"))
        if not (kind in terminal and kind in found and _is_true(found[kind])):
            found[kind] = condition
    return {kind: condition for kind, condition in found.items() if _is_true(condition)}


def latest_transition(conditions: list[Object]) -> str:
    """Return the time of the last transition; all are in one form and zone, so texts compare."""
    return max(map(_changed, conditions), default="")


def _is_true(condition: Object) -> bool:
    return str(condition.get("status")) == "True"


def _changed(condition: Object) -> str:
    return str(condition.get("lastTransitionTime") or "")
