"""What lets a test take its time while a step has little: held answers, and a clock put forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.api_server import ThreadedServer
from harness.faults.actions import Call
from harness.faults.plan import Fault
from starlette.types import Message


class _Held:
    """The server does what it was asked for, and answers when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()

    async def strike(self, call: Call) -> None:
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        await call.handle(keep)
        await self.let.wait()
        for message in answer:
            await call.send(message)


@contextmanager
def unanswered(
    server: ThreadedServer, verb: str, path: str, times: int | None = None
) -> Iterator[None]:
    """What is done in this context is done before the server answers such requests.

    A limit of a step that begins with an answer does not run meanwhile.
    """
    held = _Held()
    server.faults.add(Fault(held, verb, path, times=times))
    try:
        yield
    finally:
        server.call(held.let.set)


@dataclass
class Clock:
    """A module's `time`, with a monotonic clock that a test puts forward.

    Attributes:
        ahead: By how many seconds.
    """

    ahead: float = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def install(self, monkeypatch: Any, *modules: str) -> Clock:
        for module in modules:
            monkeypatch.setattr(f"kfp_pytorch.launcher.{module}.time", self)
        return self
