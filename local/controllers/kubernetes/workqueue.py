"""A queue of objects to reconcile, as every controller has one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api, ApiError

Key = tuple[str, str]
"""A namespace and a name."""

# client-go's ItemExponentialFailureRateLimiter.
_FIRST_RETRY_S = 0.005
_LONGEST_RETRY_S = 1000.0
_LOG = logging.getLogger(__name__)


class WorkQueue:
    """Calls one function for each object that was added; retries after an `ApiError`."""

    def __init__(self, api: Api, reconcile: Callable[[Key], None]) -> None:
        self._api = api
        self._reconcile = reconcile
        self._due: dict[Key, None] = {}
        self._added = asyncio.Event()
        self._timers: dict[Key, tuple[datetime, asyncio.TimerHandle]] = {}
        self._failures: dict[Key, int] = {}

    def add(self, obj: Object) -> None:
        """Reconcile an object as soon as possible."""
        self.add_key((objects.namespace(obj), objects.name(obj)))

    def add_key(self, key: Key) -> None:
        """Reconcile the object of this key as soon as possible."""
        self._due[key] = None
        self._added.set()

    def add_at(self, key: Key, time: datetime) -> None:
        """Reconcile an object at a time, besides whenever it is added."""
        known = self._timers.get(key)
        if known and known[0] <= time and not known[1].cancelled():
            return
        if known:
            known[1].cancel()
        delay = max(0.0, (time - self._api.clock()).total_seconds())
        handle = asyncio.get_running_loop().call_later(delay, self._add_due, key)
        self._timers[key] = (time, handle)

    def _add_due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add_key(key)

    async def watch(self, kind: Kind) -> None:
        """Add every object of a kind that is there or changes, until cancelled."""
        async for _, obj in self._api.watch(kind):
            self.add(obj)

    async def watch_owned(self, kind: Kind, owner: Kind) -> None:
        """Add the controller, if it is of this kind, of every object that is there or changes."""
        async for _, obj in self._api.watch(kind):
            for reference in objects.owners(obj):
                if reference.get("controller") and reference["kind"] == owner.kind:
                    self.add_key((objects.namespace(obj), reference["name"]))

    async def run(self, *watches: Coroutine[Any, Any, None]) -> None:
        """Work, and run the watches that add objects, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in (self._work(), *watches):
                group.create_task(each)

    async def _work(self) -> None:
        try:
            while True:
                await self._added.wait()
                self._added.clear()
                while self._due:
                    key = next(iter(self._due))
                    del self._due[key]
                    self._try(key)
                    # Requests are served between two objects.
                    await asyncio.sleep(0)
        finally:
            for _, handle in self._timers.values():
                handle.cancel()

    def _try(self, key: Key) -> None:
        try:
            self._reconcile(key)
        except ApiError as error:
            _LOG.debug("%s/%s: %s", *key, error)
            self._retry(key)
        except Exception:  # an unforeseen error ends no controller
            _LOG.exception("%s/%s", *key)
            self._retry(key)
        else:
            self._failures.pop(key, None)

    def _retry(self, key: Key) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 40), _LONGEST_RETRY_S)
        asyncio.get_running_loop().call_later(delay, self.add_key, key)
