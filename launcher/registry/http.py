"""HTTP to a model registry: what it refuses, and what is repeated until it is answered."""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.kubernetes.transport import read_body
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.text import cut

T = TypeVar("T")
Object = dict[str, Any]

# After these the same request may be answered later.
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
# In Kubeflow's registry a status says so, in MLflow's a code.
_EXISTS = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "Not Found")
# In seconds.
_CONNECT, _READ = 10.0, 30.0
_FIRST_PAUSE, _LONGEST_PAUSE, _LONGEST_ASKED = 0.25, 10.0, 60.0
_REPORT_AFTER = 10.0
_SHOWN = 500


class RegistryError(StepError):
    """A registry did not do what it was asked."""


class Refused(RegistryError):
    """The registry refused a request."""


class NotFound(Refused):
    """What was asked for is not there."""


class AlreadyThere(Refused):
    """Something of that name is there already."""


class Unanswered(RegistryError):
    """No answer came, or none of the registry's: what was asked for may have been done or not."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Server:
    """A registry's REST API, and who asks.

    Attributes:
        authorization: The header Authorization; empty for none.
        secrets: What no message may show: an error may repeat what was sent.
        ca_file: A file of further certificate authorities; empty for the system's alone.
        patience: Seconds that the registry may be unavailable.
    """

    title: str  # what messages call it
    url: str  # what is before every path
    authorization: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    ca_file: str = ""
    patience: float = 120.0


class Api:
    """Asks one registry."""

    def __init__(self, server: Server) -> None:
        """Raises InputError: the certificate authorities cannot be read."""
        self.server = server
        settings: Object = {"ssl_context": _trust(server.ca_file)} if server.ca_file else {}
        limits = urllib3.Timeout(connect=_CONNECT, read=_READ)
        self._pool = urllib3.PoolManager(retries=False, timeout=limits, **settings)

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: Object | None = None,
    ) -> Object:
        """Ask once.

        `path`: below the API's URL. Returns the object in the answer. Raises NotFound,
        AlreadyThere, Refused: the registry says so. Raises Unanswered: it may be asked again.
        """
        server = self.server
        headers = {"Accept": "application/json", "User-Agent": "kfp-pytorch"}
        if server.authorization:
            headers["Authorization"] = server.authorization
        if body is not None:
            headers["Content-Type"] = "application/json"
        target = f"{path}?{urlencode(query)}" if query else path
        try:
            response = self._pool.request(
                method,
                server.url + target,
                body=None if body is None else json.dumps(body, ensure_ascii=False).encode(),
                headers=headers,
                redirect=False,
                preload_content=False,
            )
            content = read_body(response, _READ)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            said = f"{type(error).__name__}: {error}"
            raise Unanswered(self._message("did not answer", f"{method} {path}", said)) from error
        return self._answer(f"{method} {path}", response, content)

    def retried(self, attempt: Callable[[], T]) -> T:
        """Repeat what may be repeated while the registry does not answer.

        `attempt`: asks; where it creates something, it looks first whether that is there, for an
        earlier one may have been carried out without an answer. Raises Unanswered: the registry was
        not available for too long.
        """
        began, pause, reported = time.monotonic(), _FIRST_PAUSE, False
        while True:
            try:
                return attempt()
            except Unanswered as error:
                waited, patience = time.monotonic() - began, self.server.patience
                asked = min(error.retry_after, _LONGEST_ASKED)
                wait = asked + random.uniform(0.5, 1.0) * pause  # noqa: S311
                if waited + wait > patience:
                    raise RegistryError(
                        f"{error.message}\nIt was asked for {waited:.0f} s (timeout {patience:g} "
                        "s). What it has of this model by now is found when the step is started "
                        "again."
                    ) from error
                if waited > _REPORT_AFTER and not reported:
                    log(f"{error.short.rstrip('.')}; trying for up to {patience:g} s")
                    reported = True
                time.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def change(self, method: str, path: str, body: Object) -> Object:
        """Ask for what is the same when it is done twice, until it is answered."""
        return self.retried(lambda: self.ask(method, path, body=body))

    def _answer(self, call: str, response: urllib3.BaseHTTPResponse, content: bytes) -> Object:
        status = response.status
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if status < 300 and isinstance(answer, dict):
            return answer
        found: Object = answer if isinstance(answer, dict) else {}
        code = str(found.get("error_code") or found.get("code") or "")
        text = str(found.get("message") or content.decode(errors="replace"))
        moved = f" (to {response.headers['Location']})" if "Location" in response.headers else ""
        said = f"{status}{moved} {code} {' '.join(text.split())}".replace("  ", " ").rstrip()
        if status in _TRANSIENT:
            after = response.headers.get("Retry-After", "")
            message = self._message("failed at", call, said)
            raise Unanswered(message, float(after) if after.isdecimal() else 0.0)
        kind = Refused
        if status == 409 or code in _EXISTS:
            kind = AlreadyThere
        # Any other 404 is of a server that is not the registry.
        elif code in _ABSENT:
            kind = NotFound
        did = "refused" if status >= 300 else "did not answer in JSON to"
        raise kind(self._message(did, call, said))

    def _message(self, did: str, call: str, said: str) -> str:
        for secret in self.server.secrets:
            said = said.replace(secret, "…")
        advice = patterns.advice("registry", said)
        message = f"{self.server.title} at {self.server.url} {did} {call}: {cut(said, _SHOWN)}"
        return f"{message}\n{advice}".rstrip()


def _trust(ca_file: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"ca_file is {ca_file!r}, which cannot be read as certificates in PEM form: {error}. "
            "It is a path in this step's container: mount the file from a ConfigMap or a Secret "
            "(kfp.kubernetes.use_config_map_as_volume)."
        ) from None
    return context
