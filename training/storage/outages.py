"""Whether a store is unavailable for now, so that a new start can succeed, or refuses requests.

The errors of object stores' clients share no base class, so they are recognised by name; the reason
often is an error in their chain of causes.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any

UNAVAILABLE = (
    "the store does not answer now, so this ends with an exit code that the operator's restart "
    "policy ExitCode starts again, from the newest checkpoint; if it never answers,"
)
# Statuses by which a server, or a proxy, says that it is unavailable for now:
# https://www.rfc-editor.org/rfc/rfc9110#section-15 and, for 429, RFC 6585.
_UNAVAILABLE_STATUSES = {408, 429, 500, 502, 503, 504}
_UNREACHABLE = {
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
    *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN),
}
_NO_ANSWER = {
    # botocore.exceptions
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError"),
    "ConnectionClosedError",
    # aiohttp and http.client: an answer that ends too early
    *("ServerDisconnectedError", "ClientPayloadError", "IncompleteRead"),
    # google.auth.exceptions, of the server of tokens
    "TransportError",
}
_REFUSED = (PermissionError, FileNotFoundError, ssl.SSLError)


def is_outage(error: BaseException) -> bool:
    """Whether a store could not be reached, or answered that it is unavailable for now.

    Returns whether it is so. Not for errors that a new start gets again: refused credentials, a
    bucket or host that does not exist, a certificate that is not trusted.
    """
    chain = list(_chain(error))
    if any(isinstance(each, _REFUSED) or _is_unknown_host(each) for each in chain):
        return False
    statuses = [status for status in map(_status, chain) if status]
    if statuses:
        return statuses[0] in _UNAVAILABLE_STATUSES
    return any(map(_has_no_answer, chain))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    """The HTTP status that an error was made of; 0 where there is none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:  # those of requests, aiohttp and gcsfs
        answered = getattr(response, "status_code", None)
        found = answered or getattr(error, "status", None) or getattr(error, "code", None)
    return int(found) if str(found).isdecimal() else 0


def _is_unknown_host(error: BaseException) -> bool:
    # A name server that does not answer is EAI_AGAIN: see getaddrinfo(3).
    return isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN


def _has_no_answer(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return any(kind.__name__ in _NO_ANSWER for kind in type(error).__mro__)
