"""A watch over HTTP: one line of JSON an event."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from json import dumps

from kfp_pytorch.local.apiserver.errors import ApiError, Object
from kfp_pytorch.local.apiserver.http.paths import Target
from kfp_pytorch.local.apiserver.store.api import ADDED, DELETED, MODIFIED, Api, Change
from kfp_pytorch.local.apiserver.store.selectors import Match

_TIMEOUT_S = 1800.0
_BACKLOG_LIMIT = 20_000
_INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True)
class Options:
    """What a watch was asked for."""

    since: int | None = None  # the resourceVersion to resume from; None begins with what exists
    timeout_s: float | None = None  # seconds after which the watch ends; None for 30 to 60 minutes
    bookmarks: bool = False  # whether the client takes bookmarks
    bookmark_every_s: float = 60.0  # seconds between two bookmarks
    initial: bool = False  # whether a bookmark marks the end of the initial objects


def line(event: str, encoded: str) -> bytes:
    """The line of an event. `event`: its type, such as ADDED."""
    return f'{{"type":"{event}","object":{encoded}}}\n'.encode()


async def lines(
    api: Api,
    target: Target,
    match: Match,
    options: Options,
    shown: Callable[[Change], str] | None = None,
) -> AsyncIterator[bytes]:
    """The lines of one watch, until its time is over; `shown` makes an event's JSON."""
    kind = target.resource.kind
    loop = asyncio.get_running_loop()
    # At random, so that clients do not watch again all at once.
    timeout = options.timeout_s or _TIMEOUT_S * (1 + random.random())  # noqa: S311
    end = loop.time() + timeout
    try:
        subscription = api.subscribe(kind, target.namespace, options.since)
    except ApiError as error:
        yield line("ERROR", dumps(error.status()))
        return
    left_of_initial = subscription.waiting if options.initial else -1
    next_bookmark = loop.time() + options.bookmark_every_s
    while subscription.waiting < _BACKLOG_LIMIT:
        if left_of_initial == 0:
            yield _bookmark(target, api.revision, {_INITIAL_END: "true"})
        left_of_initial -= 1
        until = min(end, next_bookmark) if options.bookmarks else end
        try:
            async with asyncio.timeout_at(until):
                change = await subscription.next()
        except TimeoutError:
            if options.bookmarks:
                yield _bookmark(target, api.revision)
            if loop.time() >= end:
                return
            next_bookmark = loop.time() + options.bookmark_every_s
            continue
        event = _event_type(change, match)
        if event:
            yield line(event, shown(change) if shown else change.encoded)


def _event_type(change: Change, match: Match) -> str:
    """The type of the event for a watch of selected objects; empty where there is no event."""
    before = change.previous is not None and match(change.previous)
    after = change.type != DELETED and match(change.object)
    if after:
        return MODIFIED if before else ADDED
    return DELETED if before else ""


def _bookmark(target: Target, revision: int, annotations: dict[str, str] | None = None) -> bytes:
    meta: Object = {"resourceVersion": str(revision)}
    if annotations:
        meta["annotations"] = annotations
    kind = target.resource.kind
    obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
    return line("BOOKMARK", dumps(obj))
