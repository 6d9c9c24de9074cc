"""A request and what one try of it gave, whatever the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.text import cut

SHOWN_CHARACTERS = 300
# HTTP's and gRPC's own.
ANSWERED = ("200", "OK")


class WrongAnswers(StepError):
    """The model server answers, but not what it should."""


class NoAnswer(StepError):
    """The model server does not answer requests."""


def any_body(_body: bytes) -> bool:
    """Take any body for a whole answer."""
    return True


@dataclass(frozen=True)
class Request:
    """One request; a server's address is no part of it, so it can be sent to several."""

    body: bytes
    path: str = ""  # what is added to the server's URL; gRPC's method
    is_whole: Callable[[bytes], bool] = any_body  # whether a body is all of an answer, and not cut


@dataclass(frozen=True)
class Reply:
    """What one try of a request gave: an answer, a refusal, or an error of the connection.

    Attributes:
        status: HTTP's or gRPC's, such as `503` or `UNAVAILABLE`; without one, the error's name.
        body: What came, whole or not.
        seconds: From sending to the end.
        arrivals: How many bytes of the body had come after how many seconds.
        error: Why no whole answer came; empty where one did, whatever its status.
        is_transient: Whether the same request may be answered later.
    """

    status: str
    body: bytes = field(default=b"", repr=False)
    seconds: float = 0.0
    arrivals: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    error: str = ""
    is_transient: bool = False

    @property
    def is_answer(self) -> bool:
        """Whether it is the whole answer of the model."""
        return self.status in ANSWERED and not self.error

    @property
    def said(self) -> str:
        """What the server said, in short, for a message."""
        text = self.error or self.body[: 4 * SHOWN_CHARACTERS].decode(errors="replace")
        if self.error.startswith(self.status):
            return cut(text, SHOWN_CHARACTERS)
        return cut(f"{self.status} {text}".rstrip(), SHOWN_CHARACTERS)


@dataclass(frozen=True)
class Answers:
    """What the model answered to one request.

    Attributes:
        items: One for each row, or one of the whole request, as JSON.
        output_tokens: How many tokens a language model made; None where the server does not say.
        first_token: After how many seconds the first of them came; None where it is not known.
    """

    items: list[Any]
    output_tokens: int | None = None
    first_token: float | None = None


class Client(Protocol):
    """Sends requests to one server; safe to use from several threads."""

    def send(self, request: Request) -> Reply:
        """Sends a request once. Errors of the network and of the server are replies too."""


def words_of(body: bytes) -> str:
    """Write the beginning of an answer for a message."""
    return body[:SHOWN_CHARACTERS].decode(errors="replace") or "it is empty"


def shown(value: Any) -> str:
    """Write JSON for a message."""
    return cut(json.dumps(value, ensure_ascii=False), SHOWN_CHARACTERS)
