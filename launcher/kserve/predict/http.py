"""Sends requests over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

import urllib3

from kfp_pytorch.launcher.kserve.predict.exchange import Reply, Request
from kfp_pytorch.launcher.kubernetes.transport import AnswerTooLarge, read_pieces

# Right after a rollout: no route yet, no pod behind the route yet, a pod that loads its model.
RETRIED = (404, 408, 429, 502, 503, 504)
_NOT_READY, _LOOKED_AT = b"not ready", 300


@dataclass(frozen=True)
class Server:
    """Where and how requests are sent."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    request_timeout: float = 30.0  # seconds until an answer must have come, whole
    connections: int = 1  # how many are kept open


class HttpClient:
    """Sends requests to one server; safe to use from several threads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pool = urllib3.PoolManager(
            retries=False, timeout=server.request_timeout, maxsize=server.connections
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
                headers={"content-type": "application/json", **self._server.headers},
                redirect=False,
                preload_content=False,
            )
            status = str(response.status)
            for piece in read_pieces(response, self._server.request_timeout):
                body += piece
                arrivals.append((len(body), time.monotonic() - began))
            is_not_ready = _NOT_READY in bytes(body[:_LOOKED_AT]).lower()
            is_transient = response.status in RETRIED or is_not_ready
        except AnswerTooLarge as large:
            status, error, is_transient = type(large).__name__, str(large), False
        except urllib3.exceptions.HTTPError as failed:
            status = type(failed).__name__
            error = f"{status}: {failed}"
        return Reply(
            status=status,
            body=bytes(body),
            seconds=time.monotonic() - began,
            arrivals=tuple(arrivals),
            error=error,
            is_transient=is_transient,
        )
