"""Runs the API on a port of this machine: in a loop that runs, or in a thread of its own."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from kfp_pytorch.local.apiserver import faultactions, objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.faults import Faults, Request
from kfp_pytorch.local.apiserver.http.app import app
from kfp_pytorch.local.apiserver.http.connections import Connections, Peer, bound
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.apiserver.store.garbage_collector import Collector

HOST = "127.0.0.1"
_BACKLOG = 1024
# Longer than clients keep idle connections, so that none finds its connection closed.
_KEEP_ALIVE_S = 600
_START_LIMIT_S = 30.0

T = TypeVar("T")


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: signals are the process' own affair."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection:
    """One request's connection, as faults see it."""

    def __init__(self, server: Server, peer: Peer) -> None:
        self._server, self._peer = server, peer

    def reset(self) -> None:
        self._server.connections.reset(self._peer)

    def refuse(self, seconds: float) -> None:
        self._server.go_away(seconds)


class Server:
    """The API on a port of the loopback interface.

    Attributes:
        api: The objects.
        faults: What goes wrong; nothing, until something is added.
        connections: The open connections.
        port: The port, once it is started.

    Args:
        api: The objects.
        log_root: The folder of the containers' logs.
        port: The port; 0 for any that is free.
        token: The bearer token that every request must carry; empty for none.
        bookmark_every_s: Seconds between two bookmarks of a watch.
    """

    def __init__(
        self,
        api: Api,
        log_root: Path,
        port: int = 0,
        *,
        token: str = "",
        bookmark_every_s: float = 60.0,
    ) -> None:
        self.api = api
        self.faults = Faults()
        self.connections = Connections()
        self.port = port
        inner = app(api, log_root, bookmark_every_s=bookmark_every_s)
        self._app = self.faults.wrap(_authenticated(inner, token), self._connection)
        self._uvicorn: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None
        self._away: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://{HOST}:{self.port}"

    @property
    def requests(self) -> deque[Request]:
        """The requests that the server saw, oldest first."""
        return self.faults.requests

    async def start(self) -> None:
        """Listens, and answers from the moment that this returns.

        Raises:
            OSError: when the port is in use.
        """
        sock = _bound(self.port)
        self.port = sock.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            http=self.connections.protocol(),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._uvicorn = _Uvicorn(config)
        self._task = asyncio.create_task(self._uvicorn.serve(sockets=[sock]))
        while not self._uvicorn.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the API server ended before it began")
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        """Breaks every connection off and listens no more."""
        if self._away is not None:
            self._away.cancel()
            self._away = None
        await self._stop_listening()

    async def _stop_listening(self) -> None:
        if self._uvicorn is None or self._task is None:
            return
        for listener in self._uvicorn.servers:
            listener.close()
        self.connections.reset_all()
        # uvicorn's own way to end looks only now and then whether it should.
        unfinished = [self._task, *self._uvicorn.server_state.tasks]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        self._uvicorn = self._task = None

    def go_away(self, seconds: float) -> None:
        """Refuses connections for some seconds, as a server that restarts does."""

        async def away() -> None:
            await self._stop_listening()
            # Bound, so that nobody else gets the port meanwhile.
            with _bound(self.port):
                await asyncio.sleep(seconds)
            await self.start()

        if self._away is None or self._away.done():
            self._away = asyncio.get_running_loop().create_task(away())

    def set_clock(self, ahead_s: float) -> None:
        """Lets the server's clock go ahead of this machine's, or behind it."""
        self.api.clock = lambda: objects.now() + timedelta(seconds=ahead_s)

    def _connection(self, scope: Scope) -> faultactions.Connection:
        client = scope.get("client") or ("", 0)
        return _Connection(self, (str(client[0]), int(client[1])))


def _bound(port: int) -> socket.socket:
    try:
        return bound(HOST, port)
    except OSError as error:
        why = f"port {port} of {HOST} cannot be used: {error.strerror}; choose another, or 0"
        raise OSError(error.errno, f"{why} for any that is free") from None


def _authenticated(inner: ASGIApp, token: str) -> ASGIApp:
    """The application behind a check of the bearer token; as it is where there is none.

    The token may also be the first part of the path. kubectl sends no credentials over plain
    HTTP, but it keeps to the path of the server that its kubeconfig names.
    """
    if not token:
        return inner
    wanted = f"Bearer {token}".encode()
    refusal = json.dumps(faultactions.status(401)).encode()

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        given = next((v for k, v in scope["headers"] if k == b"authorization"), b"")
        first, _, rest = str(scope["path"])[1:].partition("/")
        if hmac.compare_digest(first.encode(), token.encode()):
            await inner({**scope, "path": f"/{rest}"}, receive, send)
            return
        if hmac.compare_digest(given, wanted):
            await inner(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": refusal})

    return checked


async def serve(api: Api, port: int, log_root: Path, *, token: str = "") -> None:
    """Serves the API, and collects its garbage, until it is cancelled.

    Args:
        api: The objects.
        port: The port; 0 for any that is free.
        log_root: The folder of the containers' logs.
        token: The bearer token that every request must carry; empty for none.

    Raises:
        OSError: when the port is in use.
    """
    server = Server(api, log_root, port, token=token)
    await server.start()
    try:
        await Collector(api).run()
    finally:
        await server.stop()


def kubeconfig(url: str, *, token: str = "", token_file: str = "", namespace: str = "") -> Object:
    """A kubeconfig for a server.

    Args:
        url: The server.
        token: The bearer token; empty for none.
        token_file: A file that holds the token, in place of `token`.
        namespace: The namespace of those who name none; empty for `default`.
    """
    user = {"tokenFile": token_file} if token_file else {"token": token} if token else {}
    name = "kfp-pytorch-local"
    context = {"cluster": name, "user": name, "namespace": namespace or "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }


def write_kubeconfig(path: Path, config: Object) -> Path:
    """Writes a kubeconfig that only its owner can read, and gives its path back."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        # JSON is YAML, and needs no library.
        json.dump(config, file, indent=1)
    return path


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
        self._server = Server(api, self.log_root, token=token, bookmark_every_s=bookmark_every_s)
        self.faults = self._server.faults
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._thread = threading.Thread(target=self._run, name="api-server", daemon=True)
        self._thread.start()
        self._wait(self._begin())
        self.url = self._server.url
        # kubectl shows the token only where it is part of the URL's path.
        config = kubeconfig(f"{self.url}/{token}" if token else self.url, token=token)
        self.kubeconfig = write_kubeconfig(root / "kubeconfig", config)

    @property
    def requests(self) -> list[Request]:
        """The requests that the server saw, oldest first."""
        return list(self._server.requests)

    @property
    def port(self) -> int:
        """The port of the server."""
        return self._server.port

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
        self._server.set_clock(ahead_s)

    def go_away(self, seconds: float) -> None:
        """Breaks every connection off and refuses new ones for some seconds."""
        self.call(self._server.go_away, seconds)

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
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_LIMIT_S)

    async def _begin(self) -> None:
        await self._server.start()
        collector = Collector(self.api, namespace_delay_s=self._namespace_delay_s)
        self._tasks.append(asyncio.create_task(collector.run()))

    async def _end(self) -> None:
        await self._server.stop()
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
