"""A queue of objects to look at again, as every controller has one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

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
    """Calls one function for each object that was added, once however often it was added.

    A call that raises `ApiError` is made again, later and later.

    Args:
        api: Tells the time.
        work: What to do about one object.
    """

    def __init__(self, api: Api, work: Callable[[Key], None]) -> None:
        self._api = api
        self._work = work
        self._due: dict[Key, None] = {}
        self._added = asyncio.Event()
        self._timers: dict[Key, tuple[datetime, asyncio.TimerHandle]] = {}
        self._failures: dict[Key, int] = {}

    def add(self, key: Key) -> None:
        """Look at an object as soon as possible."""
        self._due[key] = None
        self._added.set()

    def add_controller(self, obj: Object, kind: Kind) -> None:
        """Look at the object that controls another as soon as possible.

        Args:
            obj: What is controlled, such as a pod.
            kind: The kind of controller that is meant; those of other kinds are left alone.
        """
        for owner in objects.owners(obj):
            if owner.get("controller") and owner["kind"] == kind.kind:
                self.add((objects.namespace(obj), owner["name"]))

    def add_at(self, key: Key, time: datetime) -> None:
        """Look at an object at a time, besides whenever it is added."""
        known = self._timers.get(key)
        if known and known[0] <= time and not known[1].cancelled():
            return
        if known:
            known[1].cancel()
        delay = max(0.0, (time - self._api.clock()).total_seconds())
        handle = asyncio.get_running_loop().call_later(delay, self._ring, key)
        self._timers[key] = (time, handle)

    def _ring(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                await self._added.wait()
                self._added.clear()
                while self._due:
                    key = next(iter(self._due))
                    del self._due[key]
                    self._try(key)
                    # Requests get their turn between two objects.
                    await asyncio.sleep(0)
        finally:
            for _, handle in self._timers.values():
                handle.cancel()

    def _try(self, key: Key) -> None:
        try:
            self._work(key)
        except ApiError as error:
            _LOG.debug("%s/%s: %s", *key, error)
            self._retry(key)
        except Exception:  # a controller outlives what it did not foresee
            _LOG.exception("%s/%s", *key)
            self._retry(key)
        else:
            self._failures.pop(key, None)

    def _retry(self, key: Key) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 40), _LONGEST_RETRY_S)
        asyncio.get_running_loop().call_later(delay, self.add, key)
