"""Changes of objects, their history, and watches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from json import dumps
from weakref import WeakSet

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object, expired

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"

Key = tuple[str, str]
"""Namespace (empty for a cluster-wide object) and name."""


@dataclass(frozen=True)
class Change:
    """One write. Its objects are the store's own and must not be changed."""

    type: str  # ADDED, MODIFIED or DELETED
    revision: int  # the resourceVersion that the write made
    object: Object  # the object after the write; the last state of a deleted one
    previous: Object | None = None  # the object before the write, or None

    @cached_property
    def encoded(self) -> str:
        """The object as JSON, encoded once for all watches."""
        return dumps(self.object, separators=(",", ":"))


class Subscription:
    """A queue of the changes of one kind; it ends when nothing refers to it."""

    def __init__(self, namespace: str | None, initial: list[Change]) -> None:
        self._namespace = namespace
        self._queue: asyncio.Queue[Change] = asyncio.Queue()
        for change in initial:
            self.put(change)

    def put(self, change: Change) -> None:
        """Takes a change if it is in this subscription's namespace."""
        if self._namespace is None or objects.namespace(change.object) == self._namespace:
            self._queue.put_nowait(change)

    @property
    def waiting(self) -> int:
        """How many changes have not been read."""
        return self._queue.qsize()

    async def next(self) -> Change:
        """The next change."""
        return await self._queue.get()


class Watch(AsyncIterator[tuple[str, Object]]):
    """What `Api.watch` gives: ADDED for each object that is there, then every change."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    async def __anext__(self) -> tuple[str, Object]:
        change = await self._subscription.next()
        return change.type, objects.copy(change.object)


class Table:
    """The objects of one kind, their latest changes, and their watches."""

    def __init__(self, first_revision: int, history: int) -> None:
        self.objects: dict[Key, Object] = {}
        self.history: deque[Change] = deque(maxlen=history)
        # The newest revision that the history does not hold.
        self.forgotten = first_revision
        self.watchers: WeakSet[Subscription] = WeakSet()

    def record(self, change: Change) -> None:
        """Adds a change to the history and to all watches."""
        if len(self.history) == self.history.maxlen:
            self.forgotten = self.history[0].revision
        self.history.append(change)
        for watcher in list(self.watchers):
            watcher.put(change)

    def since(self, revision: int) -> list[Change]:
        """The changes after a revision, oldest first. Raises ApiError: 410, they are forgotten."""
        if revision < self.forgotten:
            raise expired(f"too old resource version: {revision} ({self.forgotten})")
        newer = 0
        for change in reversed(self.history):
            if change.revision <= revision:
                break
            newer += 1
        return list(islice(self.history, len(self.history) - newer, None))
