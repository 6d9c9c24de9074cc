"""The faults of watches: wrong events, no events, an early end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harness.faults.actions import Call, EnoughError, status, until_enough
from starlette.types import Message

from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http.streaming import disconnected


@dataclass(frozen=True)
class SilentWatch:
    """A watch that opens and never says anything.

    Attributes:
        after_events: How many events come first.
    """

    after_events: int = 0

    async def strike(self, call: Call) -> None:
        """Sends the status and the first events, and then nothing."""
        left = self.after_events

        def rewrite(line: bytes) -> Iterator[bytes]:
            nonlocal left
            if left > 0:
                left -= 1
                yield line

        if left:
            await _rewritten(call, rewrite)
            return
        headers = [(b"content-type", b"application/json")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await call.send({"type": "http.response.body", "body": b"", "more_body": True})
        await disconnected(call.receive)


async def _rewritten(call: Call, rewrite: Callable[[bytes], Iterator[bytes | None]]) -> None:
    """A watch whose lines are rewritten; None ends it."""

    async def through(message: Message) -> None:
        body = message.get("body", b"")
        if message["type"] == "http.response.start" or not body:
            await call.send(message)
            return
        for line in rewrite(body):
            if line is None:
                await call.send({"type": "http.response.body", "body": b"", "more_body": False})
                raise EnoughError
            await call.send({"type": "http.response.body", "body": line, "more_body": True})

    await until_enough(call, through)


@dataclass(frozen=True)
class EndWatch:
    """A watch that ends early, as if its time were over.

    Attributes:
        after_events: How many events come first.
        cut: Whether half of one more event comes, without the end of its line.
    """

    after_events: int = 0
    cut: bool = False

    async def strike(self, call: Call) -> None:
        """Ends the watch."""
        left = self.after_events

        def rewrite(line: bytes) -> Iterator[bytes | None]:
            nonlocal left
            if left > 0:
                left -= 1
                yield line
                if left > 0 or self.cut:
                    return
            elif self.cut:
                yield line[: len(line) // 2]
            yield None

        if self.after_events == 0 and not self.cut:
            await call.answer(200, b"", {"content-type": "application/json"})
        else:
            await _rewritten(call, rewrite)


@dataclass(frozen=True)
class DuplicateEvents:
    """A watch that says everything twice."""

    async def strike(self, call: Call) -> None:
        """Repeats each line."""
        await _rewritten(call, lambda line: iter((line, line)))


@dataclass(frozen=True)
class ReorderEvents:
    """A watch that says the second of each two events first."""

    async def strike(self, call: Call) -> None:
        """Changes the order of each two lines."""
        held: list[bytes] = []

        def rewrite(line: bytes) -> Iterator[bytes]:
            held.append(line)
            if len(held) == 2:
                yield from reversed(held)
                held.clear()

        await _rewritten(call, rewrite)


@dataclass(frozen=True)
class BookmarksOnly:
    """A watch that brings bookmarks and no change."""

    async def strike(self, call: Call) -> None:
        """Leaves out all other events."""
        await _rewritten(call, lambda line: iter((line,) if b'"BOOKMARK"' in line else ()))


@dataclass(frozen=True)
class WithholdLast:
    """A watch that is always one event behind, and so never says the last."""

    async def strike(self, call: Call) -> None:
        """Holds each line back until the next comes."""
        held: list[bytes] = []

        def rewrite(line: bytes) -> Iterator[bytes]:
            yield from held
            held[:] = [line]

        await _rewritten(call, rewrite)


@dataclass(frozen=True)
class InsertEvent:
    """A watch that says something of its own: a 410, a bookmark, an object of another kind.

    Attributes:
        type: The event's type.
        object: The event's object.
        after_events: How many events come first; 0 inserts it at once.
        ends: Whether the watch ends after it, as it does after an error.
    """

    type: str
    object: Object = field(default_factory=dict)
    after_events: int = 0
    ends: bool = False

    async def strike(self, call: Call) -> None:
        """Inserts the event."""
        own = (json.dumps({"type": self.type, "object": self.object}) + "\n").encode()
        if self.after_events == 0 and self.ends:
            await call.answer(200, own, {"content-type": "application/json"})
            return
        seen = 0

        def rewrite(line: bytes) -> Iterator[bytes | None]:
            nonlocal seen
            if seen == 0 and self.after_events == 0:
                yield own
            seen += 1
            yield line
            if seen == self.after_events:
                yield own
                if self.ends:
                    yield None

        await _rewritten(call, rewrite)


def expired_watch(after_events: int = 0, code: int = 410, reason: str = "Expired") -> InsertEvent:
    """A watch that ends in an ERROR event, by default for a resourceVersion that is too old."""
    return InsertEvent("ERROR", status(code, reason), after_events, ends=True)
