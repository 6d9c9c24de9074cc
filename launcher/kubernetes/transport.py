"""HTTP to the API server: one request at a time, and again where a retry can mend it.

Connection errors, 429 and 5xx are retried with growing, jittered pauses within a bounded blind
time; 401, and a certificate that is not trusted, with credentials read afresh from disk.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import unquote, urlencode

import urllib3

from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kubernetes.api_errors import (
    ApiError,
    Call,
    Transient,
    Unauthorized,
    Unreachable,
    error_from,
)
from kfp_pytorch.launcher.kubernetes.credentials import Credentials, NoCluster
from kfp_pytorch.launcher.kubernetes.objects import Object

T = TypeVar("T")
# OpenSSL's word for a certificate that the CA on disk does not vouch for.
_DISTRUST = "CERTIFICATE_VERIFY_FAILED"


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a call that gets no answer is tried again. All in seconds.

    Attributes:
        blind: How long a server that has answered before may be unavailable.
        first_contact: The same for a server that has never answered.
        pause: The first pause between tries; it doubles, with jitter.
        max_pause: What it grows to; a Retry-After may ask for up to four times as much.
        connect: Limit of making a connection.
        read: Limit of waiting for an answer.
        login_retries: How often credentials are read again before 401 is believed.
        report_after: After how long unavailable a person is told.
    """

    unavailability_budget: float = 900.0
    first_contact: float = 60.0
    pause: float = 0.25
    max_pause: float = 15.0
    connect: float = 10.0
    read: float = 30.0
    login_retries: int = 5
    report_after: float = 10.0


def ignore_report(_text: str) -> None:
    """Tells nobody."""


@dataclass
class _ServerState:
    """What the transports to one server know of it together.

    Attributes:
        credentials: The credentials as last read, by whichever of them.
        contacted: Whether the server has ever answered.
        clock_offset: How far its clock is ahead of this machine's.
    """

    credentials: Credentials
    contacted: bool = False
    clock_offset: timedelta = timedelta()


class Transport:
    """Sends requests to one API server; safe to use from several threads."""

    def __init__(
        self,
        load: Callable[[], Credentials],
        policy: RetryPolicy,
        notify: Callable[[str], None] = ignore_report,
        known: _ServerState | None = None,
    ) -> None:
        self._load = load
        self._policy = policy
        self._notify = notify
        self._known = known or _ServerState(load())
        self._pooled = self._known.credentials
        self._pool = _pool(self._pooled)

    @property
    def credentials(self) -> Credentials:
        """The credentials as last read."""
        return self._known.credentials

    @property
    def clock_offset(self) -> timedelta:
        """How far the server's clock is ahead of this machine's."""
        return self._known.clock_offset

    def with_policy(self, policy: RetryPolicy) -> Transport:
        """Another transport to the same server, with its own sockets and policy."""
        return Transport(self._load, policy, self._notify, self._known)

    def json(self, call: Call, method: str, path: str, **request: Any) -> Object:
        """Sends one request and returns the object in the answer.

        Args:
            call: What it is for.
            method: The HTTP method.
            path: The path below the server's address.
            **request: As in `send`.

        Returns:
            The object.

        Raises:
            ApiError: As in `send`; `Unreachable` also when the answer is not an object in JSON.
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
        """Sends one request, again with fresh credentials while the answer is 401.

        Args:
            call: What it asks, for errors.
            method: The HTTP method.
            path: The path.
            query: The query's parameters; empty ones are left out.
            body: The object to send.
            idle_timeout: If not 0, the answer is a stream and left unread; it may be silent for so
                many seconds.

        Returns:
            The answer, whose status is a success.

        Raises:
            ApiError: The server refused, or gave no answer.
        """
        asked = urlencode({k: v for k, v in (query or {}).items() if v})
        target = f"{path}?{asked}" if asked else path
        data = None if body is None else json.dumps(body).encode()
        login = 0
        while True:
            answer = self._once(call, method, target, data, idle_timeout)
            if answer.status < 300:
                return answer
            error = error_from(call, answer.status, answer.headers, answer.data)
            if not isinstance(error, Unauthorized) or login == self._policy.login_retries:
                raise error
            # At once the first time: a rotated token is the usual cause.
            time.sleep(min(2.0 ** (login - 2), 4.0) if login else 0.0)
            self._reload()
            login += 1

    def retried(self, attempt: Callable[[], T]) -> T:
        """Makes an attempt again until it meets no transient error.

        Args:
            attempt: What to try.

        Returns:
            What it returned.

        Raises:
            CannotObserve: The blind time is over, or the credentials are refused after a try whose
                answer was lost: nobody knows what that did.
            ApiError: The server refused.
        """
        started, pause = time.monotonic(), self._policy.pause
        told = lost = False
        while True:
            try:
                return attempt()
            except Unauthorized as error:
                if not lost:
                    raise
                raise CannotObserve(f"Could not observe the cluster: {error.message}") from error
            except Transient as error:
                lost = True
                waited, budget = time.monotonic() - started, self._budget()
                if waited >= budget:
                    raise CannotObserve(_unavailable_message(error, waited)) from error
                if waited > self._policy.report_after and not told:
                    self._notify(f"{error.message.rstrip('.')}; trying for up to {budget:.0f} s")
                    told = True
                time.sleep(max(0.0, min(self._wait(error, pause), budget - waited)))
                pause = min(2 * pause, self._policy.max_pause)

    def _budget(self) -> float:
        limits = self._policy
        return (
            limits.unavailability_budget
            if self._known.contacted
            else min(limits.unavailability_budget, limits.first_contact)
        )

    def _wait(self, error: Transient, pause: float) -> float:
        asked = min(error.retry_after, 4 * self._policy.max_pause)
        # Jitter: a hundred launchers must not come back to a restarted server in step.
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
        read = idle_timeout or self._policy.read
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
                answer.read(cache_content=True)
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if _DISTRUST in str(error):
                # A cluster's CA is rotated as its tokens are.
                self._reload()
            words = f"{type(error).__name__}: {error} ({who.server}, from {who.source})"
            raise Unreachable(call, 0, "", words) from error
        self._known.contacted = True
        self._note_time(answer.headers.get("Date", ""))
        return answer

    def _reload(self) -> None:
        """Reads the credentials afresh; who rotates them may be writing the file just now."""
        with contextlib.suppress(NoCluster):
            self._known.credentials = self._load()

    def _connected(self) -> tuple[Credentials, urllib3.PoolManager]:
        """The credentials, with a new pool for new ones: a certificate may have changed."""
        who = self._known.credentials
        if who is not self._pooled:
            self._pooled, self._pool = who, _pool(who)
        return who, self._pool

    def _note_time(self, date: str) -> None:
        try:
            self._known.clock_offset = parsedate_to_datetime(date) - datetime.now(UTC)
        except (TypeError, ValueError):
            return


def _unavailable_message(error: ApiError, waited: float) -> str:
    advice = "Check that the API server runs and can be reached."
    if _DISTRUST in error.server_message:
        advice = "Check that the CA in the kubeconfig, or of the service account, is the server's."
    if error.status:
        advice = (
            "Something answered, but not as it should: an administrator looks at the API server, "
            "and at the webhook or the proxy if one is named."
        )
    said = error.message.rstrip(".")
    return (
        f"Could not observe the cluster: tried for {waited:.0f} s, the last time: {said}.\n{advice}"
    )


def _pool(credentials: Credentials) -> urllib3.PoolManager:
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    # Finds a peer that went without a word in about a minute, also on an idle watch.
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
