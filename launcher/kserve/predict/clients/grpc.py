"""Sends requests over gRPC."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict import grpc_packages
from kfp_pytorch.launcher.kserve.predict.clients.server import NOT_READY, Server, trusted_by
from kfp_pytorch.launcher.kserve.predict.exchange import Reply, Request

# gRPC's words for what HTTP says right after a rollout: a proxy's 404 is UNIMPLEMENTED, or UNKNOWN
# https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md
_TRANSIENT = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "ABORTED")
_TRANSIENT_WORDS = re.compile(
    r"http2 header with status: (?:404|408|429|502|503|504)"
    r"|RST_STREAM|GOAWAY|Stream removed|Socket closed|Connection reset"
)
_TOO_LARGE = "larger than max"
_LARGEST_ANSWER = 64 << 20
_MILLISECONDS = 1000


class GrpcClient:
    """Sends requests to one server; safe to use from several threads."""

    def __init__(self, server: Server) -> None:
        check_headers(server.headers)
        self._server = server
        self._grpc = grpc_packages.grpc()
        self._channel = self._connected(urlsplit(server.url))
        self._calls: dict[str, Any] = {}

    def __enter__(self) -> GrpcClient:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def _connected(self, parts: Any) -> Any:
        address = f"{parts.netloc}" if parts.port else f"{parts.netloc.rstrip(':')}:{_port(parts)}"
        host = next((v for k, v in self._server.headers.items() if k.lower() == "host"), "")
        options = [
            ("grpc.max_receive_message_length", _LARGEST_ANSWER),
            ("grpc.max_send_message_length", -1),
            # A server that starts is looked for as often as over HTTP, and so is its name.
            ("grpc.initial_reconnect_backoff_ms", 250),
            ("grpc.max_reconnect_backoff_ms", 5 * _MILLISECONDS),
            ("grpc.dns_min_time_between_resolutions_ms", _MILLISECONDS),
            ("grpc.enable_http_proxy", 0),
            *([("grpc.default_authority", host)] if host else []),
        ]
        if parts.scheme == "http":
            return self._grpc.insecure_channel(address, options)
        file = self._server.ca_file
        trusted = Path(file).read_bytes() if trusted_by(file) else None
        return self._grpc.secure_channel(
            address, self._grpc.ssl_channel_credentials(trusted), options
        )

    def send(self, request: Request) -> Reply:
        """Sends a request once. Errors of the network and of the server are replies too."""
        began = time.monotonic()
        # A second call that is made at the same time does no harm.
        call = self._calls.setdefault(request.path, self._channel.unary_unary(request.path))
        headers = self._server.all_headers().items()
        metadata = [(name.lower(), value) for name, value in headers if name.lower() != "host"]
        try:
            body = call(request.body, timeout=self._server.request_timeout, metadata=metadata)
        except self._grpc.RpcError as failed:
            status, words = failed.code().name, str(failed.details() or "")
            masked = self._server.without_token(words.encode()).decode()
            return Reply(
                status=status,
                seconds=time.monotonic() - began,
                error=f"{status} {masked}".strip(),
                is_transient=_is_transient(status, words),
            )
        seconds = time.monotonic() - began
        return Reply("OK", self._server.without_token(body), seconds)


def _port(parts: Any) -> int:
    return 80 if parts.scheme == "http" else 443


def _is_transient(status: str, words: str) -> bool:
    if _TOO_LARGE in words:
        return False
    is_passing = status in _TRANSIENT or _TRANSIENT_WORDS.search(words) is not None
    return is_passing or NOT_READY.decode() in words.lower()


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise InputError: a header cannot be gRPC's metadata."""
    for name, value in headers.items():
        if not re.fullmatch(r"[0-9a-z_.-]+", name.lower()) or name.lower().endswith("-bin"):
            raise InputError(f"headers has {name!r}, which is no name of gRPC's metadata.")
        if not value.isascii():
            raise InputError(f"headers[{name!r}] must be ASCII text, for gRPC.")
