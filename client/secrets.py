"""Secrets of a connection: read, checked before they travel, and never shown."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from kfp_pytorch.client.errors import ClientError


def read(path: str, option: str) -> str:
    """The secret in a file. Raises ClientError: there is none that a request can carry."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ClientError(f"{option}: cannot read {path}: {why}.") from None
    if not text:
        raise ClientError(f"{option}: {path} is empty.")
    _check(text, f"{option}: {path}")
    return text


def of_environment(name: str) -> str:
    """The secret in a variable, or an empty string. Raises ClientError, as `read` does."""
    text = os.environ.get(name, "").strip()
    _check(text, f"${name}")
    return text


def check_host(host: str) -> None:
    """Refuses a URL with a password, which messages and links would show. Raises ClientError."""
    whole = host if "://" in host else f"https://{host}"
    try:
        has_user = "@" in urlsplit(whole).netloc
    except ValueError:
        # The connection says what is wrong with it.
        return
    if has_user:
        raise ClientError(
            "The URL of KFP has a user before its host, which KFP's client does not send. Leave it "
            "out, and give a token (--token-file) or cookies (--cookie-file)."
        )


def _check(text: str, where: str) -> None:
    if not (text.isascii() and all(letter.isprintable() for letter in text)):
        raise ClientError(
            f"{where} has several lines or characters that a header of HTTP cannot have. It takes "
            "the token, or the cookies as NAME=VALUE; NAME=VALUE, in one line."
        )
