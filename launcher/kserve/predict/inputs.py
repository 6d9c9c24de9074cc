"""The inputs of `kserve_predict`: their declaration and their checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers, servers
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance
from kfp_pytorch.launcher.kserve.predict.forms import Given, Prompt, read_requests
from kfp_pytorch.launcher.kserve.predict.latency import OF_FIRST, PERCENTILES

PROTOCOLS = ("v1", "v2", "grpc", "openai")
# RFC 9110, sections 5.1 and 5.5.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CLIENTS_OWN = ("content-length", "transfer-encoding")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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


def _variable(name: str, value: Any) -> str:
    text = readers.text(name, value)
    if text and not _VARIABLE.fullmatch(text):
        raise InputError(
            # Not quoted, for it may be the token itself.
            f"{name} must be the name of an environment variable of the step: letters, digits and "
            "underscores. The token itself comes from a Secret, by kubernetes.use_secret_as_env."
        )
    return text


def _tolerance(name: str, value: Any) -> float:
    tolerance = readers.number(name, value)
    if tolerance < 0:
        raise InputError(f"{name} is {tolerance:g}; it must be 0 or more.")
    return tolerance


def _max_latency(name: str, value: Any) -> dict[str, float]:
    known = [*PERCENTILES, *(f"{OF_FIRST}{key}" for key in PERCENTILES)]
    limits = {
        key: readers.number(f"{name}[{key!r}]", item)
        for key, item in readers.known_fields(name, value, known).items()
    }
    for key, seconds in limits.items():
        if seconds <= 0:
            raise InputError(f"{name}[{key!r}] is {seconds:g}; it must be seconds, more than 0.")
    return limits


_count = partial(readers.integer, minimum=1)


@dataclass(frozen=True)
class PredictInputs:
    """The checked inputs of `kserve_predict`."""

    url: str = declare(servers.http_url, None)
    protocol: str = declare(readers.one_of("", *PROTOCOLS), "")
    model_name: str = declare(readers.text, "")
    requests: tuple[Given, ...] = declare(read_requests, [])
    headers: dict[str, str] = declare(_headers, {})
    token_env: str = declare(_variable, "")
    token_file: str = declare(servers.mounted_file, "")
    ca_file: str = declare(servers.mounted_file, "")
    rtol: float = declare(_tolerance, Tolerance.rtol)
    atol: float = declare(_tolerance, Tolerance.atol)
    min_correct: float = declare(readers.share, 1.0)
    max_latency: dict[str, float] = declare(_max_latency, {})
    batch_size: int = declare(partial(_count, maximum=4096), 32)
    repeat: int = declare(partial(_count, maximum=100_000), 1)
    concurrency: int = declare(partial(_count, maximum=256), 1)
    ready_timeout: int = declare(readers.integer, 120)
    request_timeout: int = declare(_count, 30)

    @property
    def tolerance(self) -> Tolerance:
        """How far a number may be from the expected one."""
        return Tolerance(self.rtol, self.atol)


def parse_inputs(**inputs: Any) -> PredictInputs:
    """Check the inputs of `kserve_predict`, the model and its samples not counted.

    Raises InputError: one cannot work, or two contradict each other.
    """
    given = parse(PredictInputs, "kserve_predict", inputs)
    if given.token_env and given.token_file:
        raise InputError("token_env and token_file are set; set one of them.")
    has_token = bool(given.token_env or given.token_file)
    if has_token and any(name.lower() == "authorization" for name in given.headers):
        raise InputError("headers has Authorization, and there is a token; leave one of them out.")
    wanted = [name for name in given.max_latency if name.startswith(OF_FIRST)]
    if wanted and not any(isinstance(each, Prompt) and each.is_stream for each in given.requests):
        raise InputError(
            f'max_latency has {wanted[0]!r}, but no request has "stream": true, whose answer has a '
            "first token."
        )
    return given
