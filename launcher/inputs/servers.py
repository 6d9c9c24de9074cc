"""Reads how a step reaches a server: its address, and files of the step's container."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import urllib3

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers


def http_url(name: str, value: Any) -> str:
    """Read an address that begins with http:// or https:// and names no user."""
    text = readers.text(name, value).strip()
    if "@" in text:
        # Not quoted: there may be a password, and the address may be too broken to tell where.
        raise InputError(
            f"{name} holds a user's name; take it out, for it would be shown in the log."
        )
    try:
        parts, host = urlsplit(text), urllib3.util.parse_url(text).host or ""
        host.encode("idna")
    except (ValueError, urllib3.exceptions.LocationParseError) as error:
        raise InputError(f"{name} is {text!r}, which is no URL: {error}.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{name} is {text!r}; it must begin with http:// or https:// and a host.")
    return text


def optional_http_url(name: str, value: Any) -> str:
    """Read an address as `http_url`; unset gives ''."""
    return "" if readers.is_unset(value) else http_url(name, value)


def mounted_file(name: str, value: Any) -> str:
    """Read the path of a file in the step's container; unset gives ''."""
    text = readers.text(name, value)
    if text and not text.startswith("/"):
        raise InputError(
            # Not quoted, for it may be the content itself.
            f"{name} must be the path of a file in the step's container, which begins with /. "
            "kubernetes.use_secret_as_volume and use_config_map_as_volume mount files."
        )
    return text
