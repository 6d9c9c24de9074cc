"""A small client of the API server over plain HTTP, of the standard library alone."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any

from kfp_pytorch.launcher.constants import Kind

MERGE_PATCH = "application/merge-patch+json"


class RequestRefused(Exception):
    """The server answered with an error of this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def path(kind: Kind, namespace: str, name: str = "", *, subresource: str = "") -> str:
    """Returns the path of a namespaced resource, or of one object of it."""
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    parts = [root, "namespaces", namespace, kind.plural, name, subresource]
    return "/".join(part for part in parts if part)


def request(
    server: str, method: str, url: str, body: dict[str, Any] | None = None, *, token: str = ""
) -> dict[str, Any]:
    """Sends one request to `server`, `http://HOST:PORT`; a PATCH is a merge patch.

    `url`: the path, and the query if there is one. Raises RequestRefused: when the server answers
    with an error. Raises OSError: when it cannot be reached within 10 seconds.
    """
    headers = {"Content-Type": MERGE_PATCH if method == "PATCH" else "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server).netloc, timeout=10)
    try:
        connection.request(method, url, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read() or b"{}")
    except http.client.HTTPException as error:
        raise OSError(f"{method} {url}: {error}") from error
    finally:
        connection.close()
    if response.status >= 300:
        raise RequestRefused(response.status, f"{method} {url}: {answer.get('message', '')}")
    return answer
