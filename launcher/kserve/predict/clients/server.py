"""A server as a client knows it: its address, what is sent with each request, its limits."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_pytorch.launcher.errors import InputError

# What a server says that loads its model, whatever its status; looked for in the first bytes.
NOT_READY, LOOKED_AT = b"not ready", 300
# A shorter one might be part of an answer by chance.
_SHORTEST_TOKEN = 8


def no_token() -> str:
    """Return the token of a server that wants none."""
    return ""


@dataclass(frozen=True)
class Server:
    """Where and how requests are sent.

    Attributes:
        url: What a request's path is added to; of gRPC scheme, host and port.
        headers: HTTP headers, or gRPC's metadata; `Host` is the authority.
        token: Gives the bearer token of each request; empty for none.
        ca_file: CA certificates to trust in place of the usual ones; empty for these.
        request_timeout: Seconds until an answer must have come, whole.
        connections: How many are kept open.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Callable[[], str] = field(default=no_token, repr=False)
    ca_file: str = ""
    request_timeout: float = 30.0
    connections: int = 1

    def all_headers(self) -> dict[str, str]:
        """The headers of a request, the token's included. Raises InputError: no token."""
        token = self.token()
        return {**self.headers, **({"Authorization": f"Bearer {token}"} if token else {})}

    def without_token(self, body: bytes) -> bytes:
        """An answer without the token, which an echoing server may send back."""
        token = self.token().encode()
        if len(token) < _SHORTEST_TOKEN or token not in body:
            return body
        # As long, so that what counts the bytes of the answer stays right.
        return body.replace(token, b"*" * len(token))


def trusted_by(ca_file: str) -> ssl.SSLContext | None:
    """Make the trust in the certificates of a file; None for the usual one.

    Raises InputError: it cannot be read, or has no certificates.
    """
    if not ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = error.strerror or "it has no certificate in PEM form"
        raise InputError(f"ca_file is {ca_file!r}, which cannot be used: {why}.") from None


def token_source(variable: str, file: str, environ: Mapping[str, str]) -> Callable[[], str]:
    """Find where the token of requests comes from; a file is read anew for each, for it rotates.

    `variable`: the name of an environment variable, or empty. `file`: a file's path, or empty.
    Raises InputError: there is no token there.
    """
    if not (variable or file):
        return no_token

    def read() -> str:
        if variable:
            return _checked(environ.get(variable, ""), f"The variable {variable} (token_env)")
        try:
            content = Path(file).read_text(encoding="latin-1")
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise InputError(f"The file {file} (token_file) cannot be read: {why}.") from None
        return _checked(content, f"The file {file} (token_file)")

    read()
    return read


def _checked(text: str, what: str) -> str:
    token = text.strip()
    if not token:
        raise InputError(
            f"{what} has no token. kubernetes.use_secret_as_env(task, secret_name=…, "
            "secret_key_to_env={KEY: VARIABLE}) or kubernetes.use_secret_as_volume gives the task "
            "that of a Secret."
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError(f"{what} holds no token: it must be one word of ASCII characters.")
    return token
