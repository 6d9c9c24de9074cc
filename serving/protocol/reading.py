"""How many messages of gRPC are read at once, and how long each may take.

gRPC reads a message as a whole, and tells its size when all of it is in memory. So until then each
counts as the largest one that is allowed. What is not read yet stays with its client, but for the
64 KiB of each call that HTTP/2 takes ahead.

A connection's last message tells how large its next will be. Of the large ones fewer are read at
once, and only when they can be answered then: small messages do not wait behind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.serving.errors import DeadlineExceeded, Overloaded
from kfp_pytorch.serving.room import Room
from kfp_pytorch.serving.service import LARGEST_AT_ONCE

# So many bytes of messages are read at once, were each the largest; and so many messages at least.
READ_BYTES = 384 * 1024 * 1024
FEWEST_AT_ONCE = 8
# A message of so many bytes is large.
LARGE_BYTES = 1024 * 1024
# Nobody waits longer to be read.
WAIT_SECONDS = 5.0
# A message that takes longer gives way to others, unless it is one of a few. That is counted in
# looks: while the event loop does something else, nothing is read.
LONG_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_MOST_REMEMBERED = 10_000

Stop = Callable[[Exception], Coroutine[Any, Any, None]]


class Reading:
    """The messages that are being read, and what is known of those that will be."""

    def __init__(self, largest: int, most_waiting: int) -> None:
        at_once = max(FEWEST_AT_ONCE, READ_BYTES // largest)
        self._room = Room(at_once, most_waiting, WAIT_SECONDS)
        self._for_small = at_once // 3
        self._free_to_last = at_once // 3
        self._large_room = Room(LARGEST_AT_ONCE * largest, most_waiting, WAIT_SECONDS)
        self._largest = largest
        self._sizes: dict[str, int] = {}
        self._turns: dict[Turn, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def expect(self, peer: str, deadline: float) -> int:
        """Waits until a connection's message can be answered, if it will be large.

        Returns the bytes that are kept for it, until `expect_no_more`. Raises Overloaded.
        """
        size = self._sizes.get(peer, 0)
        if size:
            await self._large_room.enter(size, deadline)
        return size

    def expect_no_more(self, size: int) -> None:
        """Says that a message is answered for which bytes were kept."""
        if size:
            self._large_room.leave(size)

    def remember(self, peer: str, size: int) -> None:
        """Takes note of the size of a connection's message."""
        self._sizes.pop(peer, None)
        if size >= LARGE_BYTES and peer:
            self._sizes[peer] = size
            if len(self._sizes) > _MOST_REMEMBERED:
                del self._sizes[next(iter(self._sizes))]

    async def begin(self, peer: str, deadline: float, stop: Stop) -> Turn:
        """Waits until a message may be read. Raises Overloaded.

        `peer`: the connection, or nothing for a message that is small. `deadline`: on the event
        loop's clock. `stop`: ends the call with an error, where reading takes too long.
        """
        spare = self._for_small if peer in self._sizes else 0
        await self._room.enter(1, deadline, spare)
        turn = Turn(peer, spare, deadline, stop)
        self._turns[turn] = None
        if self._timer is None:
            self._look_again()
        return turn

    async def end(self, turn: Turn) -> None:
        """Says that a message was read, or will not be. Raises what ended its call, if that did."""
        del self._turns[turn]
        self._free_to_last += turn.lasts
        self._room.leaving -= turn.gives_way
        self._room.leave(1)
        if turn.stopping is not None:
            await turn.stopping

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Looks which messages take too long."""
        now = asyncio.get_running_loop().time()
        for turn in self._turns:
            turn.looks += 1
            if turn.stopping is not None:
                continue
            if now >= turn.deadline:
                why = "the message did not come before the request's deadline"
                self._stop(turn, DeadlineExceeded(why))
            elif turn.looks * _LOOK_SECONDS > LONG_SECONDS and not turn.lasts:
                self._make_way(turn)
        self._timer = None
        if self._turns:
            self._look_again()

    def _make_way(self, turn: Turn) -> None:
        """Lets a message take long, if few do, or nobody waits."""
        # One that was not expected to be large gives way to those that were, too.
        spare = 0 if turn.spare else self._for_small
        if self._free_to_last:
            self._free_to_last -= 1
            turn.lasts = True
        elif self._room.wanted(spare):
            self._room.leaving += 1
            turn.gives_way = True
            why = f"the message took more than {LONG_SECONDS:g} s, and other requests wait"
            self._stop(turn, Overloaded(why))

    def _stop(self, turn: Turn, error: Exception) -> None:
        self.remember(turn.peer, self._largest)
        # What reads is not cancelled: gRPC would lose what comes at that moment, and its memory.
        turn.stopping = asyncio.get_running_loop().create_task(turn.stop(error))


@dataclass(eq=False, slots=True)
class Turn:
    """A message that is being read."""

    peer: str
    spare: int
    deadline: float
    stop: Stop
    looks: int = 0
    lasts: bool = False
    gives_way: bool = False
    stopping: asyncio.Task[None] | None = None
