"""Asks a server all cases, and judges what it answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kfp_pytorch.launcher.kserve.predict.cases import Case
from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance, has_not_finite
from kfp_pytorch.launcher.kserve.predict.exchange import Answers, Client
from kfp_pytorch.launcher.kserve.predict.inputs import PredictInputs
from kfp_pytorch.launcher.kserve.predict.sending import concurrently, until_answered
from kfp_pytorch.launcher.runtime.printing import Progress

_REPORTED_EVERY = 60.0


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    Attributes:
        statuses: The status of each try; the last one is of the answer.
        seconds: How long the last try took.
        right: Whether each item is right; None where nothing was expected of it.
        answers: Those of the first round have their items; of later ones only wrong ones have.
    """

    case: Case
    statuses: tuple[str, ...]
    seconds: float
    right: tuple[bool | None, ...]
    answers: Answers


@dataclass(frozen=True)
class Item:
    """One thing that was asked for, such as the prediction of an instance."""

    number: int  # from 0 on, in the order of all requests
    expected: Any  # None for anything
    answer: Any  # None where it was not kept, as right ones of later rounds
    is_right: bool | None  # None where nothing was expected


@dataclass(frozen=True)
class Asked:
    """What became of all requests.

    Attributes:
        outcomes: In the order of the cases, round by round.
        seconds: From the second request to the end of the last; the first one may have waited for
            a server to start, and counts for no figure unless it is the only one.
    """

    outcomes: Sequence[Outcome]
    seconds: float

    @property
    def measured(self) -> Sequence[Outcome]:
        """The outcomes that count for the figures."""
        return self.outcomes[1:] or self.outcomes

    @property
    def latencies(self) -> list[float]:
        """The seconds of each measured request."""
        return [each.seconds for each in self.measured]

    @property
    def first_tokens(self) -> list[float]:
        """After how many seconds the first token of each measured stream came."""
        found = [each.answers.first_token for each in self.measured]
        return [seconds for seconds in found if seconds is not None]


def ask(client: Client, cases: Sequence[Case], url: str, given: PredictInputs) -> Asked:
    """Sends each case as often as is given, the first request alone, then several at once.

    `url`: the server's, for messages. Raises NoAnswer: the server refused a request, or did not
    answer in time. Raises WrongAnswers: an answer has not the protocol's form.
    """
    total = given.repeat * len(cases)
    waiting, progress = Progress(_REPORTED_EVERY), Progress(_REPORTED_EVERY)

    def one(number: int) -> Outcome:
        case = cases[number % len(cases)]
        replies = until_answered(client, case.request, url, given.ready_timeout, waiting)
        answers = case.read(replies[-1])
        if given.repeat > 1:
            progress.report("sending requests", f"{number + 1} of {total}")
        right = judged(case, answers.items, given.tolerance)
        if number >= len(cases) and False not in right:
            # Kept, the same answers would fill the memory.
            answers = replace(answers, items=[])
        statuses = tuple(reply.status for reply in replies)
        return Outcome(case, statuses, replies[-1].seconds, right, answers)

    first = one(0)
    began = time.monotonic()
    rest = concurrently(one, range(1, total), given.concurrency)
    seconds = time.monotonic() - began if rest else first.seconds
    return Asked([first, *rest], seconds)


def judged(case: Case, items: Sequence[Any], tolerance: Tolerance) -> tuple[bool | None, ...]:
    """Return whether each item is right; NaN and infinity never are."""

    def judge(expected: Any, item: Any) -> bool | None:
        if has_not_finite(item):
            return False
        return None if expected is None else case.agrees(expected, item, tolerance)

    expected = _expected(case, len(items))
    return tuple(judge(*pair) for pair in zip(expected, items, strict=True))


def _expected(case: Case, count: int) -> tuple[Any, ...]:
    # What is expected of a request of several choices is expected of each.
    return case.expected if len(case.expected) == count else case.expected * count


def items(asked: Asked) -> Iterator[Item]:
    """Yields what was asked for, one by one, round by round."""
    number = itertools.count()
    for outcome in asked.outcomes:
        answers = outcome.answers.items or [None] * len(outcome.right)
        expected = _expected(outcome.case, len(outcome.right))
        for wanted, answer, is_right in zip(expected, answers, outcome.right, strict=True):
            yield Item(next(number), wanted, answer, is_right)
