"""What a request is answered where it has no answer: a status, and a reason, in both protocols."""

from __future__ import annotations

from dataclasses import dataclass, replace

RETRY = {"retry-after": "1"}
# In characters: a client of gRPC takes 8 KiB of metadata, in which one may take 12 bytes.
_LONGEST_REASON = 500


class BadRequest(ValueError):
    """The request cannot be answered; the message names the field and what it should be."""


class ModelFault(Exception):
    """The model fails on what it answered before, so the fault is not the request's."""


class Overloaded(Exception):
    """More requests, or more bytes of them, wait than are taken."""


class DeadlineExceeded(Exception):
    """There was no answer before the request's deadline."""


class NotFound(Exception):
    """The server has no such model, or the model no such function."""


@dataclass(frozen=True)
class Refusal:
    """What a client is told."""

    status: int  # of HTTP
    code: str  # of gRPC
    reason: str


def refusal(error: BaseException) -> Refusal:
    """What a client is told of an error; of one that nobody expected, that it may try again."""
    told = _refusal(error)
    if len(told.reason) <= _LONGEST_REASON:
        return told
    return replace(told, reason=f"{told.reason[: _LONGEST_REASON - 1]}…")


def _refusal(error: BaseException) -> Refusal:
    match error:
        case BadRequest():
            return Refusal(400, "INVALID_ARGUMENT", str(error))
        case NotFound():
            return Refusal(404, "NOT_FOUND", str(error))
        case Overloaded():
            return Refusal(503, "UNAVAILABLE", f"{error}; try again later")
        case DeadlineExceeded():
            return Refusal(503, "DEADLINE_EXCEEDED", f"{error}; try again later")
        case MemoryError():
            why = "the predictor's memory is full; send fewer instances in a request, or try again"
            return Refusal(503, "UNAVAILABLE", f"{why} later")
    return Refusal(503, "UNAVAILABLE", f"the model fails just now ({error}); try again later")
