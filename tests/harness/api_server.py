"""A Kubernetes API server for tests, in a thread of its own, that can fail on request."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from harness.faults.plan import Faults, Request, client
from harness.faults.restart import Restart
from starlette.types import Scope

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.http import connections
from kfp_pytorch.local.apiserver.http import server as http_server
from kfp_pytorch.local.apiserver.http.server import Server, listening_socket
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.apiserver.store.garbage_collector import Collector

Object = dict[str, Any]
T = TypeVar("T")

_LIMIT_S = 30.0


class _Connection:
    """The connection of one request, as faults use it."""

    def __init__(self, server: ThreadedServer, scope: Scope) -> None:
        self._server = server
        self._client = client(scope)

    def reset(self) -> None:
        if transport := self._server.server.connections.transport(self._client):
            connections.reset(transport)

    def close(self) -> None:
        if transport := self._server.server.connections.transport(self._client):
            transport.close()

    def refuse(self, seconds: float) -> None:
        self._server.start_outage(seconds)


class ThreadedServer:
    """A server that runs in a thread, with its loop, beside those who ask it.

    Attributes:
        api: The objects; from other threads reach them through `call`.
        faults: What goes wrong; may be added to from any thread.
        url: Where the server is.
        kubeconfig: The path of a kubeconfig for it.

    Args:
        root: A folder for its kubeconfig and logs.
        api: The objects.
        token: The bearer token that every request must carry; empty for none.
        bookmark_every_s: Seconds between two bookmarks of a watch.
        namespace_delay_s: Seconds between a namespace's deletion and that of what is in it.
    """

    def __init__(
        self,
        root: Path,
        api: Api,
        *,
        token: str = "",
        bookmark_every_s: float = 60.0,
        namespace_delay_s: float = 0.0,
    ) -> None:
        self.api = api
        self._namespace_delay_s = namespace_delay_s
        self.log_root = root / "logs"
        self.faults = Faults(lambda scope: _Connection(self, scope))
        self.server = Server(
            api,
            self.log_root,
            token=token,
            bookmark_every_s=bookmark_every_s,
            middleware=self.faults.wrap,
        )
        self._outage: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, name="api-server", daemon=True)
        self._thread.start()
        self._wait(self._begin())
        self.url = self.server.url
        # kubectl shows the token only where it is part of the URL's path.
        config = kubeconfig(f"{self.url}/{token}" if token else self.url, token)
        self.kubeconfig = write_kubeconfig(root / "kubeconfig", config)

    @property
    def requests(self) -> list[Request]:
        """The requests that the server saw, oldest first."""
        return list(self.faults.requests)

    @property
    def port(self) -> int:
        """The port of the server."""
        return self.server.port

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls a function of the API on the server's own thread: `call(server.api.get, …)`."""

        async def called() -> T:
            return fn(*args, **kwargs)

        result: T = self._wait(called())
        return result

    def run(self, coroutine: Any) -> asyncio.Future[Any]:
        """Runs a coroutine, such as a controller, in the server's loop until it is stopped.

        Args:
            coroutine: What to run.

        Returns:
            A future of another thread: `result()` waits, `cancel()` ends it.
        """
        future: Any = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future  # type: ignore[no-any-return]

    def set_clock(self, ahead_s: float) -> None:
        """Lets the server's clock go ahead of this machine's, or behind it."""
        self.api.clock = lambda: objects.now() + timedelta(seconds=ahead_s)

    def go_away(self, seconds: float) -> None:
        """Breaks every connection off and refuses new ones for some seconds."""
        self.call(self.start_outage, seconds)

    def restart(self, how: Restart | None = None) -> Restart:
        """Answers like a Kubernetes API server that restarts; returns when it begins to.

        Args:
            how: How long each phase lasts; by default as measured, 3 s together.

        Returns:
            The phases: after `seconds` of them the server answers as before.
        """
        restart = how or Restart()
        self.call(self._start_restart, restart)
        return restart

    def start_outage(self, seconds: float) -> None:
        """Breaks every connection off and refuses new ones; to be called in the server's loop."""

        async def outage() -> None:
            stopping = self.server.cancel()
            with self._held_port():
                await asyncio.gather(*stopping, return_exceptions=True)
                await asyncio.sleep(seconds)
            await self.server.start()

        if self._outage is None or self._outage.done():
            self._outage = self._loop.create_task(outage())

    def _start_restart(self, restart: Restart) -> None:
        async def restarting(held: socket.socket) -> None:
            with held:
                await asyncio.sleep(restart.refused_s)
            self.faults.add_first(restart.fault())
            await self.server.start()

        if self._outage is None or self._outage.done():
            unfinished = self.faults.unfinished()
            self.server.close_port(keep=unfinished)
            self._loop.call_later(restart.streams_s, self.faults.end, unfinished)
            self._outage = self._loop.create_task(restarting(self._held_port()))

    def _held_port(self) -> socket.socket:
        """The closed port, bound; to be called in the turn of the loop that closed it.

        Else another process could get it, or a client that tries to connect have it for its own end
        of the connection: the server would not come back.
        """
        return listening_socket(self.server.port)

    def stop(self) -> None:
        """Ends the server and its thread."""
        if self._thread.is_alive():
            self._wait(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LIMIT_S)

    async def _begin(self) -> None:
        await self.server.start()
        collector = Collector(self.api, namespace_delay_s=self._namespace_delay_s)
        self._tasks.append(asyncio.create_task(collector.run()))

    async def _end(self) -> None:
        if self._outage is not None:
            self._outage.cancel()
        await self.server.stop()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def start_in_thread(root: Path, *, api: Api | None = None, **settings: Any) -> ThreadedServer:
    """Starts a server in a thread of its own, on a free port.

    Args:
        root: A folder for its kubeconfig and logs.
        api: The objects; by default none but the usual namespaces.
        settings: What `ThreadedServer` takes: `token`, `bookmark_every_s`, `namespace_delay_s`.

    Returns:
        The server; call its `stop`.
    """
    return ThreadedServer(root, api or Api(), **settings)


def kubeconfig(url: str, token: str = "", *, token_file: str = "", namespace: str = "") -> Object:
    """A kubeconfig for a server, which may name a file for the token and a namespace."""
    config = http_server.kubeconfig(url, token)
    if token_file:
        config["users"][0]["user"] = {"tokenFile": token_file}
    if namespace:
        config["contexts"][0]["context"]["namespace"] = namespace
    return config


def write_kubeconfig(path: Path, config: Object) -> Path:
    """Writes a kubeconfig that only its owner can read, and gives its path back."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # JSON is YAML, and needs no library.
        json.dump(config, file, indent=1)
    return path
