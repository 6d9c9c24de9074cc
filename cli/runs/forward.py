"""Reaches the services of a cluster from this machine, through the proxy of its API server.

A step that runs here cannot resolve `NAME.NAMESPACE.svc.cluster.local`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import urllib3

from kfp_pytorch.launcher.kubernetes import credentials
from kfp_pytorch.launcher.kubernetes.credentials import Credentials
from kfp_pytorch.launcher.kubernetes.transport import connection_pool
from kfp_pytorch.local import loopback

_TIMEOUT = 300.0
_FORWARDED = ("Content-Type", "Accept")


class _Server(ThreadingHTTPServer):
    address_family = loopback.FAMILY


@contextmanager
def forwarding(kubeconfig: Path) -> Iterator[str]:
    """Forwards requests on a loopback port to the services of a cluster, within this block.

    Yields a URL. What is asked for at URL/NAMESPACE/SERVICE/PORT/PATH is asked of the service.
    Raises click.ClickException: the kubeconfig cannot be used.
    """
    environ = {"KUBECONFIG": str(kubeconfig)}
    try:
        credentials.load(environ)
    except credentials.NoCluster as error:
        raise click.ClickException(error.message) from None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: self.headers[name] for name in _FORWARDED if name in self.headers}
            who = credentials.load(environ)
            status, kind, content = _answer(who, self.command, self.path, headers, body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            """Writes no log."""

    server = _Server((loopback.ADDRESS, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{loopback.HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _answer(
    who: Credentials, method: str, path: str, headers: dict[str, str], body: bytes
) -> tuple[int, str, bytes]:
    """Asks a service; returns the status, the type and the content of the answer."""
    _, namespace, service, port, rest = path.split("/", 4)
    url = f"{who.server}/api/v1/namespaces/{namespace}/services/{service}:{port}/proxy/{rest}"
    if who.authorization:
        headers = {**headers, "Authorization": who.authorization}
    try:
        with connection_pool(who) as pool:
            answer = pool.request(
                method, url, body=body or None, headers=headers, retries=False, timeout=_TIMEOUT
            )
    except urllib3.exceptions.HTTPError as error:
        return 503, "text/plain", f"The API server {who.server} cannot be reached: {error}".encode()
    return answer.status, answer.headers.get("Content-Type", "text/plain"), answer.data
