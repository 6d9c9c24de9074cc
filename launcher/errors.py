"""The errors that end a step, each with a message that a person can act on."""

from __future__ import annotations

# What is kept of each end of a message that quotes a very long value.
_LONGEST_END = 500


def shortened(text: str) -> str:
    """Return a text without its middle, where that is long because of a value that it quotes."""
    left_out = len(text) - 2 * _LONGEST_END
    if left_out <= 0:
        return text
    start, end = text[:_LONGEST_END], text[-_LONGEST_END:]
    return f"{start} … ({left_out:,} characters left out) … {end}"


class StepError(Exception):
    """Ends a step with a message for a person.

    Attributes:
        message: The whole message, the most likely cause first.
        short: One line of it, for the node's message in the KFP UI.
    """

    def __init__(self, message: str, short: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.short = short or message.strip().split("\n")[0]


class InputError(StepError, ValueError):
    """An input that cannot work: the message names the value, the limit and the way out.

    A value may be as long as a script. The name before it and the way out after it must stay seen,
    so the middle of a long message is left out.
    """

    def __init__(self, message: str, short: str = "") -> None:
        super().__init__(shortened(message), short)


class JobFailed(StepError):
    """The job failed, was deleted, or exceeded one of its limits."""


class NotOurs(StepError):
    """An object of the same name belongs to another step or person."""


class CannotObserve(StepError):
    """The API server could not be asked for so long that the job's state is unknown."""


class PermissionMissing(StepError):
    """The service account lacks a permission: verb, resource and account are named."""
