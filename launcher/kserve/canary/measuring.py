"""Sends the same requests to the canary and to the stable revision, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.kserve.predict.asking import judged
from kfp_pytorch.launcher.kserve.predict.cases import Case
from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance
from kfp_pytorch.launcher.kserve.predict.exchange import Client, NoAnswer, WrongAnswers, shown
from kfp_pytorch.launcher.kserve.predict.sending import concurrently, until_answered
from kfp_pytorch.launcher.runtime.printing import Progress, log

CANARY, STABLE = "canary", "stable"
_REPORTED_EVERY = 30.0
# So many requests in a row that take their whole time and fail are enough.
_MOST_TIMEOUTS = 4


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    name: str
    url: str
    client: Client
    cases: Sequence[Case]


@dataclass(frozen=True)
class Try:
    """One request to one side, sent once.

    Attributes:
        side: `canary` or `stable`.
        number: Of the case.
        seconds: Until the end of the answer.
        error: What came in place of an answer; empty where one came.
        right: Whether each item is the known answer; None where none is known.
        items: The answer.
    """

    side: str
    number: int
    seconds: float
    error: str = ""
    right: tuple[bool | None, ...] = ()
    items: tuple[Any, ...] = field(default=(), repr=False)


@dataclass
class _Silence:
    """How long a side has answered nothing, in the seconds of its requests."""

    seconds: float = 0.0

    def after(self, tried: Try) -> None:
        """Adds a request that failed; an answer ends the silence."""
        self.seconds = self.seconds + tried.seconds if tried.error else 0.0


def measure(
    sides: Sequence[Side],
    count: int,
    concurrency: int,
    ready_timeout: float,
    request_timeout: float,
) -> list[Try]:
    """Sends `count` requests to each side, in turn, so many at once.

    What a server needs to become reachable is waited for first and is not measured. A side that
    cannot be asked even then, or stops answering, gets no further request: each counts as an error.
    """
    gone = {side.name: why for side in sides if (why := _why_gone(side, ready_timeout))}
    for name, why in gone.items():
        log(f"the {name} revision does not answer: {why}")
    order = [(side, i % len(side.cases)) for i in range(count) for side in sides]
    progress = Progress(_REPORTED_EVERY)
    silences = {side.name: _Silence() for side in sides}

    def one(job: tuple[Side, int]) -> Try:
        side, number = job
        progress.report("sending requests", "to the canary and to the stable revision")
        if side.name in gone:
            return Try(side.name, number, 0.0, gone[side.name])
        tried = _try(side, number)
        silences[side.name].after(tried)
        if silences[side.name].seconds > _MOST_TIMEOUTS * request_timeout:
            gone[side.name] = f"it stopped answering: {tried.error}"
            log(f"the {side.name} revision does not answer any more: {tried.error}")
        return tried

    return concurrently(one, order, concurrency)


def _why_gone(side: Side, ready_timeout: float) -> str:
    """Why a side gives no answer at all, or an empty string."""
    try:
        until_answered(side.client, side.cases[0].request, side.url, ready_timeout)
    except NoAnswer as error:
        return error.short
    return ""


def _try(side: Side, number: int) -> Try:
    case = side.cases[number]
    reply = side.client.send(case.request)
    if not reply.is_answer:
        return Try(side.name, number, reply.seconds, reply.said)
    try:
        items = case.read(reply).items
    except WrongAnswers as error:
        return Try(side.name, number, reply.seconds, error.short)
    except RecursionError:
        return Try(side.name, number, reply.seconds, "the answer is nested too deep to be read")
    right = judged(case, items, Tolerance())
    return Try(side.name, number, reply.seconds, "", right, tuple(items))


def text_of(items: Sequence[Any]) -> str:
    """Write the answer to one request for a person."""
    return shown(items[0] if len(items) == 1 else list(items))
