"""A registry of models as an HTTP server in the test's own process, with faults."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

Object = dict[str, Any]
Reply = tuple[int, Object | bytes, dict[str, str]]


class Registry(Protocol):
    """What answers; one request at a time."""

    def answer(self, method: str, path: str, query: dict[str, str], body: Object) -> Reply:
        """Does what is asked."""


@dataclass
class Fault:
    """What happens to requests in the place of an answer, or before it.

    Attributes:
        method: The requests' method, and `path` the end of their path.
        answer: What they get; nothing is done then.
        is_lost: Whether all is done, and then the connection reset.
        is_late: Whether another asks for the same first.
        times: How often.
    """

    method: str
    path: str
    answer: Reply | None = None
    is_lost: bool = False
    is_late: bool = False
    times: int = 1


@dataclass
class Served:
    """A registry that is served.

    Attributes:
        requests: Of all requests the method, the path, and the body.
        headers: Those of the last request.
    """

    url: str
    registry: Any
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, Object]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def writes(self) -> list[str]:
        """The requests that write, as `POST /path`; a search is none."""
        return [
            f"{method} {path}"
            for method, path, _ in self.requests
            if method != "GET" and not path.endswith("/search")
        ]

    def fault(self, method: str, path: str) -> Fault | None:
        """Take the fault of a request, if it has one."""
        for fault in self.faults:
            if fault.times and fault.method == method and path.endswith(fault.path):
                fault.times -= 1
                return fault
        return None


@contextlib.contextmanager
def serve(registry: Registry, api: str, tls: ssl.SSLContext | None = None) -> Iterator[Served]:
    """Serve a registry, whose paths are below `api`; with `tls`, over https."""
    served = Served("", registry)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            parts = urlsplit(self.path)
            path = parts.path.removeprefix(api)
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            with served.lock:
                body = json.loads(content) if content else {}
                served.requests.append((self.command, path, body))
                served.headers = dict(self.headers)
                fault = served.fault(self.command, path)
                if fault and fault.answer:
                    return self.reply(*fault.answer)
                if path == parts.path:
                    return self.reply(404, b"404 page not found", {})
                query = dict(parse_qsl(parts.query))
                if fault and fault.is_late:
                    registry.answer(self.command, path, query, dict(body))
                reply = registry.answer(self.command, path, query, body)
            if fault and fault.is_lost:
                self.close_connection = True
                # Sends a reset, as what stands between the two does that is restarted.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return self.connection.close()
            return self.reply(*reply)

        do_GET = do_POST = do_PATCH = do_DELETE = handle_request  # noqa: N815

        def reply(self, status: int, body: Object | bytes, headers: dict[str, str]) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    served.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
