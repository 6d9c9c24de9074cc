"""Room for requests, such as bytes of memory, for which they wait in a line."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from kfp_pytorch.serving.errors import Overloaded

# Where somebody has waited for so long, the last that came is the next: it is better to answer some
# at once than all of them late.
FAIR_SECONDS = 0.25


@dataclass(frozen=True, eq=False)
class _Waiter:
    amount: int
    spare: int
    since: float
    come: asyncio.Future[None]


class Room:
    """Room of some size. Who finds too little waits for a while."""

    def __init__(self, size: int, most_waiting: int, wait: float) -> None:
        """`wait`: seconds that nobody waits longer."""
        self.size = size
        self.free = size
        self.leaving = 0  # how many of those that are in it were told to leave
        self._most_waiting = most_waiting
        self._wait = wait
        self._waiting: deque[_Waiter] = deque()

    def wanted(self, spare: int) -> bool:
        """Whether more wait, who leave no more than that free, than were told to leave."""
        return sum(each.spare <= spare for each in self._waiting) > self.leaving

    async def enter(self, amount: int, deadline: float, spare: int = 0) -> None:
        """Takes an amount when it is free, and more to spare. Raises Overloaded: not in time.

        `deadline`: on the event loop's clock.
        """
        if self.free >= amount + spare:
            self.free -= amount
            return
        if len(self._waiting) >= self._most_waiting:
            raise Overloaded(f"{len(self._waiting)} requests wait to be read")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(amount, spare, loop.time(), loop.create_future())
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(min(deadline, waiter.since + self._wait)):
                await waiter.come
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self.leave(amount)
            if isinstance(error, TimeoutError):
                raise Overloaded("too many other requests are being read") from None
            raise

    def leave(self, amount: int) -> None:
        """Gives an amount back, to those that wait."""
        self.free += amount
        while waiter := self._next():
            self._waiting.remove(waiter)
            self.free -= waiter.amount
            with contextlib.suppress(asyncio.InvalidStateError):
                waiter.come.set_result(None)

    def _next(self) -> _Waiter | None:
        if not self._waiting:
            return None
        now = asyncio.get_running_loop().time()
        is_fair = now - self._waiting[0].since < FAIR_SECONDS
        line = self._waiting if is_fair else reversed(self._waiting)
        return next((each for each in line if self.free >= each.amount + each.spare), None)
