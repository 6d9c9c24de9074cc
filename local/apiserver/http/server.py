"""Runs the API on a port of this machine, in the event loop of its caller."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from kfp_pytorch.local import loopback
from kfp_pytorch.local.apiserver.errors import Object, unauthorized
from kfp_pytorch.local.apiserver.http.app import app
from kfp_pytorch.local.apiserver.http.connections import Connections, Peer
from kfp_pytorch.local.apiserver.store.api import Api

_BACKLOG = 1024
# Longer than clients keep idle connections, so that none finds its connection closed.
_KEEP_ALIVE_S = 600

Middleware = Callable[[ASGIApp], ASGIApp]


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """The API on a port of the loopback interface; 0 takes any that is free.

    `token`: the bearer token that every request must have; empty for none. `middleware`: wraps the
    application; it may answer, delay or break a request or a stream.
    """

    def __init__(
        self,
        api: Api,
        log_root: Path,
        port: int = 0,
        *,
        token: str = "",
        bookmark_every_s: float = 60.0,
        middleware: Middleware | None = None,
    ) -> None:
        self.api = api
        self.connections = Connections()
        self.port = port
        inner = _authenticated(app(api, log_root, bookmark_every_s=bookmark_every_s), token)
        self._app = middleware(inner) if middleware else inner
        self._uvicorn: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the server is."""
        return f"http://{loopback.HOST}:{self.port}"

    async def start(self) -> None:
        """Starts the server; it is ready when this returns. Raises OSError: the port is in use."""
        sock = listening_socket(self.port)
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
        """Closes the port, resets every connection, and cancels what is being answered."""
        await asyncio.gather(*self.cancel(), return_exceptions=True)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Begins to stop: the port is closed at once. Returns what is being cancelled."""
        if self._uvicorn is None or self._task is None:
            return []
        unfinished = [self._task, *self._uvicorn.server_state.tasks]
        self.close_port()
        # uvicorn's own way to end checks only now and then whether it should.
        for task in unfinished:
            task.cancel()
        return unfinished

    def close_port(self, keep: Collection[Peer] = ()) -> None:
        """Closes the port and resets connections; what is being answered goes on."""
        if self._uvicorn is None or self._task is None:
            return
        for listener in self._uvicorn.servers:
            listener.close()
        self._task.cancel()
        self.connections.reset_all(keep)
        self._uvicorn = self._task = None


def listening_socket(port: int) -> socket.socket:
    """A socket on a port of the loopback interface; 0 for any. Raises OSError: it is in use."""
    try:
        return loopback.bound(port)
    except OSError as error:
        where = f"port {port} of {loopback.ADDRESS}"
        why = f"{where} cannot be used: {error.strerror}; choose another, or 0 for any that is free"
        raise OSError(error.errno, why) from None


def _authenticated(inner: ASGIApp, token: str) -> ASGIApp:
    """The application behind a check of the bearer token; as it is where there is none.

    The token may also be the first part of the path: kubectl sends no credentials over plain HTTP.
    """
    if not token:
        return inner
    wanted = f"Bearer {token}".encode()
    refusal = json.dumps(unauthorized().status()).encode()

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


def kubeconfig(url: str, token: str = "") -> Object:
    """A kubeconfig for a server. `token`: the bearer token; empty for none."""
    name = "kfp-pytorch-local"
    context = {"cluster": name, "user": name, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {"token": token} if token else {}}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }
