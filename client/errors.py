"""What goes wrong between this package and a KFP endpoint."""

from __future__ import annotations

import click


class ClientError(click.ClickException):
    """What was asked for cannot be had; the message says why, and what to do.

    It is click's own, so the command shows it as it is.
    """

    def __str__(self) -> str:
        return self.message


class NotFoundError(ClientError):
    """KFP has no such run, pipeline, schedule or experiment."""


class ConflictError(ClientError):
    """The name is taken, or what is asked for does not go with the present state."""


class RefusedError(ClientError):
    """KFP refuses the request: a parameter, a schedule or a package does not fit."""


class UnknownOutcomeError(ClientError):
    """The connection broke in the middle: what was asked for may have been done."""
