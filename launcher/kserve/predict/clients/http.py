"""Sends requests over HTTP."""

from __future__ import annotations

import time
from types import TracebackType

import urllib3

from kfp_pytorch.launcher.kserve.predict.clients.server import (
    LOOKED_AT,
    NOT_READY,
    Server,
    trusted_by,
)
from kfp_pytorch.launcher.kserve.predict.exchange import Reply, Request
from kfp_pytorch.launcher.kubernetes.transport import AnswerTooLarge, read_pieces

# Right after a rollout: no route yet, no pod behind the route yet, a pod that loads its model.
RETRIED = (404, 408, 429, 502, 503, 504)


class HttpClient:
    """Sends requests to one server; safe to use from several threads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pool = urllib3.PoolManager(
            retries=False,
            timeout=server.request_timeout,
            maxsize=server.connections,
            ssl_context=trusted_by(server.ca_file),
        )

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._pool.clear()

    def send(self, request: Request) -> Reply:
        """Sends a request once. Errors of the network and of the server are replies too."""
        began = time.monotonic()
        body, arrivals = bytearray(), list[tuple[int, float]]()
        status = ""
        error = ""
        is_transient = True
        try:
            response = self._pool.request(
                "POST",
                self._server.url + request.path,
                body=request.body,
                headers={"content-type": "application/json", **self._server.all_headers()},
                redirect=False,
                preload_content=False,
            )
            status = str(response.status)
            for piece in read_pieces(response, self._server.request_timeout):
                body += piece
                arrivals.append((len(body), time.monotonic() - began))
            is_not_ready = NOT_READY in bytes(body[:LOOKED_AT]).lower()
            is_transient = response.status in RETRIED or is_not_ready
            if response.status == 200 and not request.is_whole(bytes(body)):
                error, is_transient = "the answer ended before its end", True
        except AnswerTooLarge as large:
            status, error, is_transient = type(large).__name__, str(large), False
        except urllib3.exceptions.HTTPError as failed:
            status = type(failed).__name__
            error = f"{status}: {failed}"
        return Reply(
            status=status,
            body=self._server.without_token(bytes(body)),
            seconds=time.monotonic() - began,
            arrivals=tuple(arrivals),
            error=error,
            is_transient=is_transient,
        )
