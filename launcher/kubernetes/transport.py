"""HTTP to the API server: sends requests, and retries them where that can help.

Connection errors, 429, 5xx, 401 and a 403 that may not last are retried with backoff and jitter
within an unavailability budget. After 401, and where the server's certificate is not trusted, the
credentials are read again from disk.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlencode

import urllib3

from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kubernetes.api_errors import (
    AlreadyExists,
    ApiError,
    Call,
    Conflict,
    Expired,
    Forbidden,
    NotFound,
    Transient,
    Unauthorized,
    Unconfirmed,
    Unreachable,
    error_from,
)
from kfp_pytorch.launcher.kubernetes.credentials import Credentials, NoCluster
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.permissions import MISSING_AFTER, Permissions, Readiness

T = TypeVar("T")
# In bytes: how much of an answer is read at once, and at most.
_PIECE, _LARGEST_ANSWER = 1 << 16, 64 << 20
# What OpenSSL calls a certificate that the CA on disk did not sign.
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
# Answers of a server that has allowed the call.
_AUTHORIZED = (NotFound, AlreadyExists, Conflict, Expired)


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a call is retried. All in seconds.

    Attributes:
        unavailability_budget: How long a server that has answered before may be unavailable.
        first_contact: The same for a server that has never answered, and for credentials that it
            has never accepted.
        denied: How long a 403 must last to be final where `/readyz` may not be read.
    """

    unavailability_budget: float = 900.0
    first_contact: float = 60.0
    pause: float = 0.25  # the first pause between tries; it doubles, with jitter
    max_pause: float = 15.0  # what it grows to; a Retry-After may ask for up to four times as much
    connect: float = 10.0  # limit of making a connection
    read: float = 30.0  # limit of waiting for an answer
    report_after: float = 10.0  # after how long without an answer this is reported
    denied: float = MISSING_AFTER


def ignore_report(_text: str) -> None:
    """Reports nothing."""


@dataclass
class _ServerState:
    """What the transports to one server share.

    Attributes:
        permissions: Which calls it has allowed and denied.
    """

    credentials: Credentials  # the credentials as last read, by any of them
    contacted: bool = False  # whether the server has ever answered
    clock_offset: timedelta = timedelta()  # how far its clock is ahead of this machine's
    permissions: Permissions = field(default_factory=Permissions)


class Transport:
    """Sends requests to one API server; safe to use from several threads."""

    def __init__(
        self,
        load: Callable[[], Credentials],
        policy: RetryPolicy,
        notify: Callable[[str], None] = ignore_report,
        state: _ServerState | None = None,
    ) -> None:
        self._load = load
        self._policy = policy
        self._notify = notify
        self._state = state or _ServerState(load())
        self._pooled = self._state.credentials
        self._pool = connection_pool(self._pooled)

    @property
    def credentials(self) -> Credentials:
        """The credentials as last read."""
        return self._state.credentials

    @property
    def clock_offset(self) -> timedelta:
        """How far the server's clock is ahead of this machine's."""
        return self._state.clock_offset

    def with_policy(self, policy: RetryPolicy) -> Transport:
        """Another transport to the same server, with its own sockets and policy."""
        return Transport(self._load, policy, self._notify, self._state)

    def json(self, call: Call, method: str, path: str, **request: Any) -> Object:
        """Sends one request and returns the object in the answer.

        `request`: as in `send`. Raises ApiError: as in `send`; `Unreachable` also when the answer
        is not an object in JSON.
        """
        data = self.send(call, method, path, **request).data
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Unreachable(call, 200, "", f"the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise Unreachable(call, 200, "", "the answer is not an object")
        return answer

    def send(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        idle_timeout: float = 0.0,
    ) -> urllib3.BaseHTTPResponse:
        """Sends one request; after 401 once more, with credentials that were read again.

        `query`: the query's parameters; empty ones are left out. `idle_timeout`: if not 0, the
        answer is a stream and left unread; it may be silent for so many seconds. Returns the
        answer, whose status is a success. Raises ApiError: the server refused, or gave no answer.
        """
        asked = urlencode({k: v for k, v in (query or {}).items() if v})
        target = f"{path}?{asked}" if asked else path
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._authorized(call, method, target, data, idle_timeout)
        except Unauthorized:
            # A rotated token is the usual cause.
            self._reload()
            return self._authorized(call, method, target, data, idle_timeout)

    def retried(self, attempt: Callable[[], T]) -> T:
        """Repeats an attempt while it meets transient errors.

        Raises CannotObserve: the unavailability budget is used up. Raises ApiError: the server
        refused; `Unauthorized` where it has never accepted the credentials.
        """
        started, pause = time.monotonic(), self._policy.pause
        reported = lost = False
        while True:
            try:
                return attempt()
            except Transient as error:
                # After any other error it is unknown what the attempt did.
                lost = lost or not isinstance(error, Unauthorized | Unconfirmed)
                waited, budget = time.monotonic() - started, self._budget(error)
                if waited >= budget:
                    if isinstance(error, Unauthorized) and not (lost or self._accepted):
                        raise
                    raise CannotObserve(_unavailable_message(error, waited)) from error
                if waited > self._policy.report_after and not reported:
                    self._notify(f"{error.short.rstrip('.')}; trying for up to {budget:.0f} s")
                    reported = True
                time.sleep(max(0.0, min(self._wait(error, pause), budget - waited)))
                pause = min(2 * pause, self._policy.max_pause)

    @property
    def _accepted(self) -> bool:
        """Whether the server has ever accepted the credentials."""
        return self._state.permissions.any_allowed

    def _budget(self, error: Transient) -> float:
        denied = isinstance(error, Unauthorized | Unconfirmed)
        policy = self._policy
        if self._accepted if denied else self._state.contacted:
            return policy.unavailability_budget
        return min(policy.unavailability_budget, policy.first_contact)

    def _confirmed(self, error: Forbidden) -> ApiError:
        """A 403 as what it is: a missing permission, or an answer that may not last."""
        call, permissions = error.call, self._state.permissions
        if not permissions.was_allowed(call):
            readiness, now = self._readiness(call), time.monotonic()
            if permissions.is_missing(call, readiness, now, self._policy.denied):
                return error
        return Unconfirmed(call, error.status, error.reason, error.server_message)

    def _authorized(self, call: Call, *request: Any) -> urllib3.BaseHTTPResponse:
        """Sends one request, and notes whether the server allows the call."""
        answer = self._once(call, *request)
        if answer.status < 300:
            self._state.permissions.allow(call)
            return answer
        error = error_from(call, answer.status, answer.headers, answer.data)
        if isinstance(error, _AUTHORIZED):
            self._state.permissions.allow(call)
        raise self._confirmed(error) if isinstance(error, Forbidden) else error

    def _readiness(self, call: Call) -> Readiness:
        try:
            status = self._once(call, "GET", "/readyz", None, 0.0).status
        except Unreachable:
            return Readiness.STARTING
        if status == 200:
            return Readiness.READY
        return Readiness.UNREADABLE if status in (401, 403, 404) else Readiness.STARTING

    def _wait(self, error: Transient, pause: float) -> float:
        asked = min(error.retry_after, 4 * self._policy.max_pause)
        # Jitter: a hundred launchers must not return to a restarted server at once.
        return asked + random.uniform(0.5, 1.0) * pause  # noqa: S311

    def _once(
        self, call: Call, method: str, target: str, data: bytes | None, idle_timeout: float
    ) -> urllib3.BaseHTTPResponse:
        who, pool = self._connected()
        headers = {"Accept": "application/json, */*", "User-Agent": "kfp-pytorch"}
        if who.authorization:
            headers["Authorization"] = who.authorization
        if data is not None:
            headers["Content-Type"] = "application/json"
        read = min(self._policy.read, idle_timeout or self._policy.read)
        limits = urllib3.Timeout(connect=self._policy.connect, read=read)
        try:
            answer = pool.request(
                method,
                who.server + target,
                body=data,
                headers=headers,
                timeout=limits,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            if not idle_timeout or answer.status >= 300:
                body = io.BytesIO(read_body(answer, self._policy.read))
                answer = urllib3.HTTPResponse(
                    body, answer.headers, answer.status,
                    decode_content=False, enforce_content_length=False,
                )  # fmt: skip
            elif (sock := getattr(answer.connection, "sock", None)) is not None:
                # The headers came in time; what follows may be idle for longer.
                sock.settimeout(idle_timeout)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if _UNTRUSTED in str(error):
                # A cluster's CA is rotated as its tokens are.
                self._reload()
            message = f"{type(error).__name__}: {error} ({who.address}, from {who.source})"
            raise Unreachable(call, 0, "", message) from error
        self._state.contacted = True
        self._note_time(answer.headers.get("Date", ""))
        return answer

    def _reload(self) -> None:
        """Reads the credentials again; the file may just be being written."""
        with contextlib.suppress(NoCluster):
            self._state.credentials = self._load()

    def _connected(self) -> tuple[Credentials, urllib3.PoolManager]:
        """The credentials, with a new pool for new ones: a certificate may have changed."""
        who = self._state.credentials
        if who is not self._pooled:
            self._pooled, self._pool = who, connection_pool(who)
        return who, self._pool

    def _note_time(self, date: str) -> None:
        try:
            self._state.clock_offset = parsedate_to_datetime(date) - datetime.now(UTC)
        except (TypeError, ValueError):
            return


def _unavailable_message(error: ApiError, waited: float) -> str:
    advice = "Check that the API server runs and can be reached."
    if _UNTRUSTED in error.server_message:
        advice = "Check that the CA in the kubeconfig, or of the service account, is the server's."
    if isinstance(error, Unauthorized | Unconfirmed):
        # The message has its own advice.
        advice = ""
    elif error.status:
        advice = (
            "That is no answer of a working API server: ask an administrator to check it, and the "
            "webhook or the proxy if one is named."
        )
    said = error.message.rstrip(".")
    message = f"Could not observe the cluster: tried for {waited:.0f} s, the last time: {said}."
    return f"{message}\n{advice}".rstrip()


class AnswerTooLarge(urllib3.exceptions.HTTPError):
    """An answer is larger than any that is waited for."""


def read_body(answer: urllib3.BaseHTTPResponse, seconds: float) -> bytes:
    """Reads an answer that was left unread, and gives its connection back.

    Raises urllib3.exceptions.HTTPError: as `read_pieces`.
    """
    return b"".join(read_pieces(answer, seconds))


def read_pieces(answer: urllib3.BaseHTTPResponse, seconds: float) -> Iterator[bytes]:
    """Yields an answer that was left unread as it comes, then gives its connection back.

    Raises urllib3.exceptions.HTTPError: it has not ended after so many seconds, however steadily it
    comes; AnswerTooLarge where it is larger than any that is waited for.
    """
    ended, size = time.monotonic() + seconds, 0
    while piece := answer.read1(_PIECE):
        size += len(piece)
        left = ended - time.monotonic()
        if left <= 0 or size > _LARGEST_ANSWER:
            answer.close()
            if left <= 0:
                raise urllib3.exceptions.HTTPError(f"the answer took over {seconds:g} s")
            raise AnswerTooLarge(f"the answer is over {_LARGEST_ANSWER >> 20} MiB")
        if (sock := getattr(answer.connection, "sock", None)) is not None:
            sock.settimeout(left)
        yield piece
    answer.release_conn()


def connection_pool(credentials: Credentials) -> urllib3.PoolManager:
    """Returns sockets to the server of credentials, with their TLS and proxy."""
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    # Finds in about a minute that a peer is gone, also on an idle watch.
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    settings: dict[str, Any] = {"socket_options": options, "maxsize": 4}
    if credentials.tls:
        settings["ssl_context"] = credentials.tls
    if credentials.server_name:
        settings["server_hostname"] = credentials.server_name
        settings["assert_hostname"] = credentials.server_name
    if credentials.proxy:
        who = urllib3.util.parse_url(credentials.proxy).auth
        headers = urllib3.make_headers(proxy_basic_auth=unquote(who)) if who else None
        return urllib3.ProxyManager(credentials.proxy, proxy_headers=headers, **settings)
    return urllib3.PoolManager(**settings)
