"""Requests that are under way to pods, so that a pod ends when the last of its own is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Requests:
    """The requests to the pods of one cluster, by the pods' uids."""

    def __init__(self) -> None:
        self._under_way: Counter[str] = Counter()
        # Set when the last request to a pod that leaves has been answered.
        self._leaving: dict[str, asyncio.Event] = {}

    def is_leaving(self, uid: str) -> bool:
        """Whether a pod takes no further request."""
        return uid in self._leaving

    @contextmanager
    def to(self, uid: str) -> Iterator[None]:
        """Count a request to a pod, within this block."""
        self._under_way[uid] += 1
        try:
            yield
        finally:
            self._under_way[uid] -= 1
            if not self._under_way[uid]:
                del self._under_way[uid]
                if uid in self._leaving:
                    self._leaving[uid].set()

    def leave(self, uid: str) -> bool:
        """Let a pod take no further request; returns whether some are under way."""
        self._leaving.setdefault(uid, asyncio.Event())
        return uid in self._under_way

    async def drained(self, uid: str, limit: float) -> None:
        """Wait until a pod that leaves has answered its last request, or for `limit` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._leaving[uid].wait(), limit)

    def forget(self, uid: str) -> None:
        """A pod is gone."""
        self._leaving.pop(uid, None)
