"""A plan of faults between a client and the server.

Each fault names the requests that it applies to and what happens to them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from urllib.parse import parse_qs

from harness.faults.actions import Action, Call, Connection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.http.connections import Peer

_REQUESTS_KEPT = 200_000


@dataclass(frozen=True)
class Fault:
    """What goes wrong, and for which requests.

    Attributes:
        action: What happens to a request.
        verb: The Kubernetes verb, such as `get`, `list`, `watch` or `create`; empty for any.
        path: A pattern of the URL's path, with `*` for anything.
        skip: How many requests that fit are let through first.
        times: How many requests it applies to; None for all.
        after_s: Seconds from when the fault is added until it begins.
        for_s: Seconds for which it lasts; None for ever.
    """

    action: Action
    verb: str = ""
    path: str = "*"
    skip: int = 0
    times: int | None = 1
    after_s: float = 0.0
    for_s: float | None = None


@dataclass
class Request:
    """A request that the server saw.

    Attributes:
        time: When it came, in seconds of the monotonic clock.
        verb: The Kubernetes verb.
        path: The URL's path.
        status: The HTTP status of the answer; 0 while there is none, or where none was given.
    """

    time: float
    verb: str
    path: str
    status: int = 0


@dataclass
class _Active:
    fault: Fault
    added: float
    seen: int = 0
    struck: int = 0
    state: Object = field(default_factory=dict)

    def strikes(self, verb: str, path: str, now: float) -> bool:
        fault, since = self.fault, now - self.added
        if fault.verb not in ("", verb) or not fnmatchcase(path, fault.path):
            return False
        if since < fault.after_s:
            return False
        if fault.for_s is not None and since > fault.after_s + fault.for_s:
            return False
        self.seen += 1
        if self.seen <= fault.skip or self.struck == fault.times:
            return False
        self.struck += 1
        return True


class Faults:
    """The faults of one server, and the requests that it saw.

    Args:
        find_connection: Gives the connection that a request came by.
    """

    def __init__(self, find_connection: Callable[[Scope], Connection]) -> None:
        self._find_connection = find_connection
        self._active: list[_Active] = []
        self._unfinished: dict[Peer, asyncio.Task[None]] = {}
        self._ended: set[Peer] = set()
        self.requests: deque[Request] = deque(maxlen=_REQUESTS_KEPT)

    def add(self, *faults: Fault) -> None:
        """Adds faults; the first that fits a request applies."""
        now = time.monotonic()
        self._active.extend(_Active(fault, now) for fault in faults)

    def add_first(self, fault: Fault) -> None:
        """Adds a fault before all others."""
        self._active.insert(0, _Active(fault, time.monotonic()))

    def clear(self) -> None:
        """Removes all faults; requests that they apply to are not changed."""
        self._active.clear()

    def struck(self) -> int:
        """How many requests the present faults were applied to."""
        return sum(active.struck for active in self._active)

    def unfinished(self) -> list[Peer]:
        """The clients whose requests are being answered, such as those that watch."""
        return list(self._unfinished)

    def end(self, clients: Collection[Peer]) -> None:
        """Ends the answers that these clients still read, and closes their connections."""
        for each in clients:
            if task := self._unfinished.get(each):
                self._ended.add(each)
                task.cancel()

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """The application with the faults before it."""

        async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._unfinished[client(scope)] = task
            try:
                await self._answer(app, scope, receive, send)
            except asyncio.CancelledError:
                if client(scope) not in self._ended:
                    raise
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                self._find_connection(scope).close()
            finally:
                self._unfinished.pop(client(scope), None)
                self._ended.discard(client(scope))

        return faulty

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        request = _request(scope)
        self.requests.append(request)

        async def recorded(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
            await send(message)

        active = self._striking(request)
        if active is None:
            await app(scope, receive, recorded)
            return
        connection = self._find_connection(scope)
        call = Call(app, scope, receive, recorded, connection, request.verb, active.state)
        await active.fault.action.strike(call)

    def _striking(self, request: Request) -> _Active | None:
        for active in list(self._active):
            if active.strikes(request.verb, request.path, request.time):
                return active
        return None


def client(scope: Scope) -> Peer:
    """The address of the client that a request came from."""
    host, port = scope.get("client") or ("", 0)
    return str(host), int(port)


def _request(scope: Scope) -> Request:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    watching = query.get("watch", [""])[0].lower() in ("1", "true")
    path = scope["path"]
    return Request(time.monotonic(), _verb(scope["method"], path, watching), path)


def _verb(method: str, path: str, watching: bool) -> str:
    """The Kubernetes verb of a request, such as `list`, `watch` or `create`.

    Args:
        method: The HTTP method.
        path: The URL's path.
        watching: Whether the query asks for a watch.
    """
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    whole = len(rest) == 1
    if method == "GET":
        return "watch" if watching else "list" if whole else "get"
    if method == "DELETE":
        return "deletecollection" if whole else "delete"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, method.lower())
