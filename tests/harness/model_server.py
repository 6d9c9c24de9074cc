"""An HTTP server that answers as a test tells it, fault by fault, and then as a model server."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Object = dict[str, Any]


@dataclass
class Answer:
    """An answer of the server.

    Attributes:
        parts: The body, sent part by part.
        first_pause_s: Seconds before the status.
        pause_s: Seconds after each part.
        cut: Whether the connection is closed where the rest of the body would come.
    """

    status: int = 200
    parts: bytes | list[bytes] = b""
    headers: Object = field(default_factory=dict)
    first_pause_s: float = 0.0
    pause_s: float = 0.0
    cut: bool = False


@dataclass
class ModelServer:
    """A server on a port of its own.

    Attributes:
        respond: What a request is answered with, by its path and its JSON.
        first: The answers that come first, one a request.
        bodies: The bodies of all requests; `paths` and `headers` are theirs.
    """

    respond: Callable[[str, Object], Answer]
    root: str = ""
    first: list[Answer] = field(default_factory=list)
    bodies: list[Object] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[Object] = field(default_factory=list)

    def answer(self, path: str, headers: Object, body: Object) -> Answer:
        self.paths.append(path)
        self.headers.append(headers)
        self.bodies.append(body)
        return self.first.pop(0) if self.first else self.respond(path, body)


@contextlib.contextmanager
def serving(
    respond: Callable[[str, Object], Answer], tls: ssl.SSLContext | None = None
) -> Iterator[ModelServer]:
    """A server that answers by `respond`, on loopback. `tls`: its certificate."""
    model = ModelServer(respond)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = model.answer(self.path, dict(self.headers), body)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                self.send(answer)

        def send(self, answer: Answer) -> None:
            time.sleep(answer.first_pause_s)
            self.send_response(answer.status)
            parts = [answer.parts] if isinstance(answer.parts, bytes) else answer.parts
            for name, value in answer.headers.items():
                self.send_header(name, value)
            is_chunked = isinstance(answer.parts, list)
            if is_chunked:
                self.send_header("transfer-encoding", "chunked")
            else:
                self.send_header("content-length", str(len(answer.parts) + answer.cut))
            self.end_headers()
            for part in parts:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part)
                self.wfile.flush()
                time.sleep(answer.pause_s)
            if is_chunked and not answer.cut:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = answer.cut

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    if tls:
        http.socket = tls.wrap_socket(http.socket, server_side=True)
    model.root = f"{'https' if tls else 'http'}://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def digits(_path: str, body: Object) -> Answer:
    """What a classifier in V1 answers whose instances are the classes themselves."""
    found = [{"class": i, "label": str(i), "score": 0.9} for i in body["instances"]]
    return Answer(200, json.dumps({"predictions": found}).encode())
