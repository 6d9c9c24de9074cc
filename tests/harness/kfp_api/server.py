"""KFP's API server for tests, in a thread of its own, that can fail on request."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import uvicorn
from harness.faults.plan import Faults, Request, client
from harness.kfp_api.app import Api, app
from harness.kfp_api.runs import Run
from harness.kfp_api.store import Store
from starlette.types import ASGIApp, Receive, Scope, Send

from kfp_pytorch.local.apiserver.http import connections
from kfp_pytorch.local.apiserver.http.server import listening_socket

_PROXY = "/api/v1/namespaces/kubeflow/services/ml-pipeline:http/proxy"
_REFUSED = b'{"code":16,"message":"Request is not authenticated"}'


class _Connection:
    """The connection of one request, as faults use it."""

    def __init__(self, server: KfpServer, scope: Scope) -> None:
        self._server, self._client = server, client(scope)

    def reset(self) -> None:
        if transport := self._server.connections.transport(self._client):
            connections.reset(transport)

    def close(self) -> None:
        if transport := self._server.connections.transport(self._client):
            transport.close()

    def refuse(self, seconds: float) -> None:
        raise NotImplementedError


class KfpServer:
    """A server that `kfp.Client` talks to.

    Attributes:
        store: What it has; only between requests may another thread look or change.
        api: How it answers.
        faults: What goes wrong.
        url: Where it is.
        tokens: The bearer tokens that it takes; with none it takes every request.
        cookies: The cookies that it takes, likewise.
        login_page: Whether a request with neither is sent a page to log in, not an error.

    Args:
        version: KFP's version.
        multi_user: Whether it has many users.
        certificate: Its certificate and that's key; None for plain HTTP.
        how: What `Api` takes.
    """

    def __init__(
        self,
        version: str = "2.17.0",
        *,
        multi_user: bool = False,
        certificate: tuple[Path, Path] | None = None,
        **how: Any,
    ) -> None:
        self.store = Store(version, multi_user=multi_user)
        self.api = Api(self.store, **how)
        self.tokens: set[str] = set()
        self.cookies: set[str] = set()
        self.login_page = False
        self.connections = connections.Connections()
        self.faults = Faults(lambda scope: _Connection(self, scope))
        sock = listening_socket(0)
        # A client's first request waits for the thread, and is not refused until that has begun.
        sock.listen()
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"
        chain, key = certificate or (None, None)
        config = uvicorn.Config(
            self.faults.wrap(self._authenticated(app(self.api))),
            http=self.connections.protocol(),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            ssl_certfile=chain,
            ssl_keyfile=key,
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._uvicorn.serve(sockets=[sock])),
            name="kfp-api",
            daemon=True,
        )
        self._thread.start()

    @property
    def requests(self) -> list[Request]:
        """The requests that it saw, the oldest first."""
        return list(self.faults.requests)

    def asked(self, path: str) -> int:
        """How many requests it saw whose path ends so."""
        return sum(each.path.endswith(path) for each in self.requests)

    def run(self) -> Run:
        """The one run that it has."""
        (run,) = self.store.runs.values()
        return run

    def stop(self) -> None:
        """Ends it and its thread."""
        self._uvicorn.should_exit = True
        self._uvicorn.force_exit = True
        self._thread.join()

    def _authenticated(self, inner: ASGIApp) -> ASGIApp:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            token = headers.get(b"authorization", "").removeprefix("Bearer ")
            known = token in self.tokens or headers.get(b"cookie", "") in self.cookies
            if known or not (self.tokens or self.cookies):
                # As Kubernetes' API server passes a request on to the service.
                path = scope["path"].removeprefix(_PROXY).replace("//", "/")
                await inner({**scope, "path": path, "raw_path": path.encode()}, receive, send)
                return
            kind, body, status = b"application/json", _REFUSED, 401
            if self.login_page:
                kind, body, status = b"text/html", b"<html>Log in</html>", 200
            start = {"type": "http.response.start", "status": status}
            await send({**start, "headers": [(b"content-type", kind)]})
            await send({"type": "http.response.body", "body": body})

        return checked
