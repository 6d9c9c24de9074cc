"""A connection to a KFP endpoint: `kfp.Client`, with limits of time and errors that help.

`kfp.Client` finds the endpoint and the credentials. Its own calls print, wait without a limit, and
take a login page for an answer; so its generated API is called through `Connection.call`.
"""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import random
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import kfp
import kfp_server_api
import urllib3
from kfp.client.set_volume_credentials import ServiceAccountTokenVolumeCredentials

from kfp_pytorch.client import secrets
from kfp_pytorch.client.errors import (
    ClientError,
    ConflictError,
    NotFoundError,
    RefusedError,
    UnknownOutcomeError,
)

HOST_ENV = "KF_PIPELINES_ENDPOINT"  # `kfp.Client` reads it
TOKEN_ENV = "KFP_PYTORCH_TOKEN"  # noqa: S105 (a name)
COOKIE_ENV = "KFP_PYTORCH_COOKIE"
# Seconds: of one request, and for how long a server that fails is asked again.
REQUEST_S = (10, 60)
PATIENCE_S, FIRST_PATIENCE_S, TEXT_PATIENCE_S = 60.0, 5.0, 1.0
_PAUSES_S = (0.5, 8.0)
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
# How often a refused token or cookie is read anew, which its issuer may just have renewed.
_UNAUTHENTICATED_TIMES = 3
# KFP's own wrappings of an error, which say the same again.
_WRAPPING = re.compile(r"^(?:(?:Failed to|InternalServerError|Invalid input error)[^:]*: )+(?=\S)")
T = TypeVar("T")


class Effect(enum.Enum):
    """What a call does, on which it depends when it may be made again."""

    READS = enum.auto()  # nothing
    ACTS = enum.auto()  # the same when it is made twice
    CREATES = enum.auto()  # one more thing each time


@dataclass(frozen=True)
class Endpoint:
    """Where KFP is, and how to authenticate.

    Attributes:
        host: Its URL, such as `https://kubeflow.example.com/pipeline` or `http://localhost:8080`.
            Empty: `$KF_PIPELINES_ENDPOINT`; else, in a pod, the service `ml-pipeline`; else that
            service through the API server of the kubeconfig, as `kfp.Client` has it.
        namespace: The namespace of a multi-user KFP; empty for that of `kfp.Client`'s context.
        token: A bearer token; empty for `$KFP_PYTORCH_TOKEN`.
        token_file: A file with one, read again for each request: for a token that is renewed.
        cookie: The cookies of a session, `NAME=VALUE`; empty for `$KFP_PYTORCH_COOKIE`.
        cookie_file: A file with them, read again when they are refused.
        ca_file: The certificate authorities to trust, in place of the usual ones, as PEM.
        context: The context of the kubeconfig; empty for the current one.
        ui_host: Where a person's browser finds the UI, for links; empty for `host`.
    """

    host: str = ""
    namespace: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""
    cookie: str = field(default="", repr=False)
    cookie_file: str = ""
    ca_file: str = ""
    context: str = ""
    ui_host: str = ""


class Connection:
    """Calls to one endpoint.

    Attributes:
        client: The `kfp.Client`.
        namespace: The user's namespace; empty where KFP has one user.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._health: dict[str, Any] = {}
        self.client = _client(endpoint, self)
        self.namespace = endpoint.namespace or self.client.get_user_namespace() or ""
        if self.multi_user and not self.namespace:
            raise ClientError(
                "This KFP has several users, and no namespace is named. Name yours: -n NAMESPACE "
                "for the command, namespace= in Python."
            )

    @property
    def within(self) -> dict[str, Any]:
        """The namespace as requests name it; nothing where KFP has one user."""
        return {"namespace": self.namespace} if self.namespace else {}

    @property
    def url(self) -> str:
        """The address of the API."""
        return str(self._api.configuration.host)

    @property
    def version(self) -> str:
        """KFP's version, such as `2.17.0`; empty where it does not say."""
        return str(self.health().get("tag_name") or "")

    @property
    def version_info(self) -> tuple[int, int]:
        """The version as numbers; that of the newest where KFP does not say."""
        numbers = re.match(r"v?(\d+)\.(\d+)", self.version)
        return (int(numbers[1]), int(numbers[2])) if numbers else (99, 0)

    @property
    def multi_user(self) -> bool:
        """Whether each user has a namespace."""
        return bool(self.health().get("multi_user"))

    @property
    def _api(self) -> Any:
        return self.client.runs.run_service_get_run.__self__.api_client

    def health(self) -> dict[str, Any]:
        """What KFP says of itself, asked once."""
        if not self._health:
            try:
                self.call(self.client.healthzs.healthz_service_get_healthz)
                # The generated model does not have the version.
                self._health = json.loads(self._api.last_response.data)
            except NotFoundError:
                raise ClientError(
                    f"{self.url} has no KFP API of version 2: there is nothing at "
                    "/apis/v2beta1/healthz. Give the URL of KFP 2 itself, such as "
                    "https://kubeflow.example.com/pipeline; KFP 1 is too old."
                ) from None
        return self._health

    def link(self, path: str) -> str:
        """The page of KFP's UI for a person's browser; empty where it is not known."""
        base = self.endpoint.ui_host or os.environ.get("KF_PIPELINES_UI_ENDPOINT", "")
        if not base:
            host = self.endpoint.host or os.environ.get(HOST_ENV, "")
            base = self.url if host else ""
        base = base if "://" in base or not base else f"https://{base}"
        return f"{base.rstrip('/')}/#/{path}" if base else ""

    def call(
        self,
        method: Callable[..., T],
        *given: Any,
        effect: Effect = Effect.READS,
        patience_s: float | None = None,
        **named: Any,
    ) -> T:
        """Calls a method of the generated API; asks again while the server fails.

        `patience_s`: for how many seconds; a minute by default.
        Raises ClientError; UnknownOutcomeError: the connection to a call that creates broke.
        """

        def once() -> T:
            answer = method(*given, _request_timeout=REQUEST_S, **named)
            self._check_json()
            return answer

        return self._patiently(once, effect, PATIENCE_S if patience_s is None else patience_s)

    def text(self, path: str, **query: str) -> str:
        """What the endpoint has at a path, as text. Raises ClientError, NotFoundError."""

        def once() -> str:
            answer = self._api.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                auth_settings=["Bearer"],
                _preload_content=False,
                _request_timeout=REQUEST_S,
                _return_http_data_only=True,
            )
            return bytes(answer.data).decode(errors="replace")

        # KFP's UI answers 500 where there is no such pod.
        return self._patiently(once, Effect.READS, TEXT_PATIENCE_S)

    def _patiently(self, once: Callable[[], T], effect: Effect, patience_s: float) -> T:
        # Of an address that never answered a person wants to hear soon.
        deadline = time.monotonic() + (patience_s if self._health else FIRST_PATIENCE_S)
        pause, refused = _PAUSES_S[0], 0
        while True:
            try:
                return once()
            except (kfp_server_api.ApiException, urllib3.exceptions.HTTPError, OSError) as error:
                status = getattr(error, "status", 0) or 0
                failure = self._failure(error, status)
                if status == 401 and refused < _UNAUTHENTICATED_TIMES and self._renewable:
                    refused += 1
                    self._renew()
                elif not _again(error, status, effect):
                    raise failure from None
                if time.monotonic() + pause > deadline:
                    raise failure from None
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(2 * pause, _PAUSES_S[1])

    @property
    def _renewable(self) -> bool:
        """Whether the credentials come from where they are renewed."""
        hook = self._api.configuration.refresh_api_key_hook
        return bool(hook or self.endpoint.cookie_file)

    def _renew(self) -> None:
        # A token's file is read for each request.
        if self.endpoint.cookie_file:
            self._api.cookie = secrets.read(self.endpoint.cookie_file, "--cookie-file")

    def _check_json(self) -> None:
        kind = str(self._api.last_response.getheader("content-type") or "")
        if "json" not in kind:
            raise ClientError(
                f"{self.url} answers with a page ({kind or 'of no type'}), not as KFP's API does. "
                f"{_LOGIN}"
            )

    def _failure(self, error: Exception, status: int) -> ClientError:
        """An error in words that a person can act on."""
        if not isinstance(error, kfp_server_api.ApiException) or not status:
            return _unreachable(self.url, error)
        said = _said(error)
        if status in (301, 302, 303, 307, 308):
            to = str((error.headers or {}).get("location", ""))
            return ClientError(f"{self.url} sends to {to or 'another page'}. {_LOGIN}")
        if status == 401:
            return ClientError(f"{self.url} does not take the credentials: {said}. {_LOGIN}")
        if status == 403:
            return ClientError(
                f"{self.url} forbids it: {said}. Ask whoever runs KFP for the permission"
                + (f" in namespace {self.namespace}." if getattr(self, "namespace", "") else ".")
            )
        if status == 404:
            return NotFoundError(said)
        if status == 409:
            return ConflictError(said)
        if status >= 500 and not _of_kfp(error):
            return ClientError(f"{self.url} fails with HTTP {status}: {said}.")
        return RefusedError(f"KFP refuses it: {said}.")


_LOGIN = (
    "Where KFP is behind a login, give a bearer token ($KFP_PYTORCH_TOKEN, --token-file) or the "
    "session's cookies ($KFP_PYTORCH_COOKIE, --cookie-file), which expire."
)


def _client(endpoint: Endpoint, connection: Connection) -> Any:
    """Makes the `kfp.Client`. Raises ClientError."""

    class Client(kfp.Client):  # type: ignore[misc]
        """`kfp.Client` that follows no redirect and whose first request has limits."""

        def _load_config(self, host: str | None, *given: Any) -> Any:
            # It prints where there is no kubeconfig.
            with contextlib.redirect_stdout(io.StringIO()):
                config = super()._load_config(host, *given)
            if not host and config.host == kfp_server_api.Configuration().host:
                raise ClientError(
                    f"Nothing says where KFP is: give its URL (--host, or ${HOST_ENV}). There is "
                    "no kubeconfig either through which it could be reached."
                )
            # A redirect makes a POST a GET; `Connection.call` asks again itself.
            config.retries = urllib3.Retry(0, redirect=False)
            # A newer server may have further states.
            config.client_side_validation = False
            return config

        def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
            del sleep_duration
            connection.client = self
            return SimpleNamespace(multi_user=connection.multi_user)

    token_file = endpoint.token_file
    if token_file:
        secrets.read(token_file, "--token-file")
    if endpoint.ca_file and not Path(endpoint.ca_file).is_file():
        raise ClientError(f"--ca-file: there is no file {endpoint.ca_file}.")
    cookie = endpoint.cookie or secrets.of_environment(COOKIE_ENV)
    if endpoint.cookie_file:
        cookie = secrets.read(endpoint.cookie_file, "--cookie-file")
    secrets.check_host(endpoint.host or os.environ.get(HOST_ENV, ""))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Client(
            host=endpoint.host or None,
            existing_token=endpoint.token or secrets.of_environment(TOKEN_ENV) or None,
            cookies=cookie or None,
            ssl_ca_cert=endpoint.ca_file or None,
            kube_context=endpoint.context or None,
            credentials=ServiceAccountTokenVolumeCredentials(token_file) if token_file else None,
            ui_host=endpoint.ui_host or None,
        )


def _again(error: Exception, status: int, effect: Effect) -> bool:
    """Whether a failed call is made again. Raises UnknownOutcomeError: it may have been done."""
    if status:
        if status == 429:
            return True
        # KFP's own 500 may mean that it does not take something.
        if status not in _TRANSIENT or (_of_kfp(error) and effect != Effect.READS):
            return False
        if effect == Effect.CREATES:
            raise UnknownOutcomeError(f"HTTP {status}") from None
        return True
    if isinstance(error, urllib3.exceptions.MaxRetryError):
        reason = error.reason
        if isinstance(reason, urllib3.exceptions.SSLError):
            return False
        if isinstance(reason, urllib3.exceptions.NewConnectionError):
            return True
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return False
    if effect == Effect.CREATES:
        raise UnknownOutcomeError(f"the connection broke: {_reason(error)}") from None
    return True


def _of_kfp(error: Exception) -> bool:
    """Whether KFP itself says so, and not a proxy before it."""
    return isinstance(_json(error), dict)


def _json(error: Exception) -> Any:
    try:
        return json.loads(getattr(error, "body", None) or "")
    except ValueError:
        return None


def _said(error: Any) -> str:
    """What the server said, without the wrappings that only repeat it."""
    body = _json(error)
    if isinstance(body, dict):
        details = [each.get("message", "") for each in body.get("details") or []]
        message = str(body.get("message") or body.get("error_message") or "")
        words = next((str(each) for each in details if each), "") or _WRAPPING.sub("", message)
        if words == "Internal Server Error":
            words = message
        return words.strip().rstrip(".") or str(error.reason)
    text = " ".join(str(error.body or error.reason or "").split())
    return text[:200] or f"HTTP {error.status}"


def _unreachable(url: str, error: Exception) -> ClientError:
    reason = _reason(error)
    if "certificate" in reason.lower():
        return ClientError(
            f"{url}: its certificate is not trusted: {reason}. --ca-file names the certificate of "
            "the authority that signed it."
        )
    return ClientError(
        f"{url} cannot be reached: {reason}. Check the URL, and where it is a port forward, that "
        "it runs: `kubectl port-forward -n kubeflow svc/ml-pipeline-ui 8080:80` and "
        "http://localhost:8080."
    )


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", None) or error
    return re.sub(r"^<[^>]*>: |^\w+\([^)]*\): ", "", str(cause)) or type(cause).__name__
