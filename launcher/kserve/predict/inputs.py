"""The inputs of `kserve_predict`: their declaration and their checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import urllib3

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare

# RFC 9110, sections 5.1 and 5.5.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CLIENTS_OWN = ("content-length", "transfer-encoding")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


@dataclass(frozen=True)
class Known:
    """A request with its known answer."""

    instance: Any  # what is sent
    prediction: Any  # what must come back: an integer is compared with the answer's `class`


def _url(name: str, value: Any) -> str:
    text = readers.text(name, value).strip()
    try:
        parts, host = urlsplit(text), urllib3.util.parse_url(text).host or ""
        host.encode("idna")
    except (ValueError, urllib3.exceptions.LocationParseError) as error:
        raise InputError(f"{name} is {text!r}, which is no URL: {error}.") from None
    if "@" in parts.netloc:
        raise InputError(
            f"{name} holds a user's name; take it out, for it would be shown in the log."
        )
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{name} is {text!r}; it must begin with http:// or https:// and a host.")
    if not parts.path.endswith(":predict"):
        raise InputError(
            f"{name} is {text!r}; it must be the exact URL of V1 predictions, which ends in "
            "/v1/models/NAME:predict, as kserve_deploy gives it."
        )
    return text


def _requests(name: str, value: Any) -> tuple[Known, ...]:
    known: list[Known] = []
    for i, item in enumerate(readers.sequence(name, value)):
        fields = set(item) if isinstance(item, dict) else set()
        if fields == {"instance", "prediction"}:
            known.append(Known(item["instance"], item["prediction"]))
        elif fields == {"instances", "predictions"}:
            known += _several(f"{name}[{i}]", item["instances"], item["predictions"])
        else:
            raise InputError(
                f'{name}[{i}] must be {{"instance": …, "prediction": …}} or {{"instances": […], '
                f'"predictions": […]}}; it has {sorted(fields) or "no fields"}.'
            )
    return tuple(known)


def _several(name: str, instances: Any, predictions: Any) -> list[Known]:
    if not isinstance(instances, list) or not isinstance(predictions, list):
        raise InputError(f"{name}: instances and predictions must be lists.")
    if len(instances) != len(predictions):
        raise InputError(
            f"{name} has {len(instances)} instances but {len(predictions)} predictions."
        )
    if not instances:
        raise InputError(f"{name} has no instances; leave it out to ask the model's own samples.")
    return [Known(i, p) for i, p in zip(instances, predictions, strict=True)]


def _headers(name: str, value: Any) -> dict[str, str]:
    headers = {
        # A token that was read from a file ends with a line break.
        key: readers.rendered(f"{name}[{key!r}]", item).rstrip("\r\n")
        for key, item in readers.mapping(name, value).items()
    }
    for key, item in headers.items():
        if not _HEADER_NAME.fullmatch(key):
            raise InputError(f"{name} has {key!r}, which is no header's name.")
        if key.lower() in _CLIENTS_OWN:
            raise InputError(f"{name} may not have {key!r}: it follows from what is sent.")
        if not _HEADER_VALUE.fullmatch(item):
            raise InputError(
                f"{name}[{key!r}] is not one line of Latin-1 text, as a header's value must be. "
                "Remove line breaks and other characters."
            )
    return headers


@dataclass(frozen=True)
class PredictInputs:
    """The checked inputs of `kserve_predict`: where and how requests are sent."""

    url: str = declare(_url, None)
    requests: tuple[Known, ...] = declare(_requests, [])
    headers: dict[str, str] = declare(_headers, {})
    ready_timeout: int = declare(readers.integer, 120)
    request_timeout: int = declare(partial(readers.integer, minimum=1), 30)
