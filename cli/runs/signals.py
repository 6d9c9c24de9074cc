"""Turns the signals that end a command into exceptions, so that its `finally` clauses run."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the command to end."""

    summary: dict[str, Any] | None = None  # of the run that it ended; None when none had begun

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a shell expects of a command that this signal ended: 130, 143 or 129."""
        return 128 + self.number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises Interrupted at the first signal within; those that follow are ignored.

    A second Ctrl-C while the command cleans up would leave things behind.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, lambda *_: None)
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
