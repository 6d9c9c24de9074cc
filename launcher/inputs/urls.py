"""Reads the addresses of web servers."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import urllib3

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers


def http_url(name: str, value: Any) -> str:
    """Read an address that begins with http:// or https:// and names no user; unset gives ''."""
    text = readers.text(name, value).strip()
    if not text:
        return ""
    # A password must not be shown, in whatever part of a broken address it stands.
    if "@" in text:
        raise InputError(
            f"{name} holds an '@', as before a host where a user's name and password stand; take "
            "them out, for they would be shown in the log."
        )
    try:
        parts, host = urlsplit(text), urllib3.util.parse_url(text).host or ""
        host.encode("idna")
    except (ValueError, urllib3.exceptions.LocationParseError) as error:
        raise InputError(f"{name} is {text!r}, which is no URL: {error}.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{name} is {text!r}; it must begin with http:// or https:// and a host.")
    return text
