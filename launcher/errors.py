"""The errors that end a step, each with a message that a person can act on."""

from __future__ import annotations


class StepError(Exception):
    """Ends a step with a message for a person.

    Attributes:
        message: The whole message, the most likely cause first.
        short: One line of it, for the node's message in the KFP UI.
    """

    def __init__(self, message: str, short: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.short = short or message.strip().splitlines()[0]


class InputError(StepError, ValueError):
    """An input that cannot work: the message names the value, the limit and the way out."""


class JobFailed(StepError):
    """The job failed, was deleted, or outran one of its limits."""


class NotOurs(StepError):
    """An object of the same name belongs to another step or person."""


class CannotObserve(StepError):
    """The API server could not be asked for so long that the job's state is unknown."""


class PermissionMissing(StepError):
    """The service account lacks a permission: verb, resource and account are named."""
