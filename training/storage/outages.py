"""Whether a store is away for now, or refuses for good: what another start can mend, and what not.

The clients of object stores have errors of their own that share no base class, so these are known
by their names; the reason often is an error beneath them.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Any

AWAY = (
    "the store does not answer now, so this ends with an exit code that the operator's restart "
    "policy ExitCode starts again, from the newest checkpoint; if it never answers,"
)
# Answers by which a server, or what is before it, says that it cannot for now:
# https://www.rfc-editor.org/rfc/rfc9110#section-15 and, for 429, RFC 6585.
_NOT_NOW = {408, 429, 500, 502, 503, 504}
_UNREACHABLE = {
    *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE),
    *(errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN),
}
_SILENT = {
    # botocore.exceptions
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError"),
    "ConnectionClosedError",
    # aiohttp and http.client: an answer that stops in the middle
    *("ServerDisconnectedError", "ClientPayloadError", "IncompleteRead"),
    # google.auth.exceptions, of the server that gives out tokens
    "TransportError",
}
_REFUSED = (PermissionError, FileNotFoundError, ssl.SSLError)


def is_outage(error: BaseException) -> bool:
    """Tells whether a store could not be reached, or answered that it cannot for now.

    Args:
        error: What a file system of this machine or of fsspec raised.

    Returns:
        Whether it is so. Not for what a new start meets again: refused credentials, a bucket or
        host of that name that does not exist, a certificate that is not trusted.
    """
    chain = list(_chain(error))
    if any(isinstance(each, _REFUSED) or _is_unknown_host(each) for each in chain):
        return False
    statuses = [status for status in map(_status, chain) if status]
    if statuses:
        return statuses[0] in _NOT_NOW
    return any(map(_is_silent, chain))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those that it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _status(error: BaseException) -> int:
    """The status of the answer that an error is made of; 0 where it is of none."""
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


def _is_silent(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return True
    return any(kind.__name__ in _SILENT for kind in type(error).__mro__)
