"""Sends requests with known answers to a model server and compares what comes back."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import urllib3

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.readers import as_float
from kfp_pytorch.launcher.runtime.printing import Progress

# Right after a rollout: no route yet, no pod behind the route yet, a pod that loads its model.
RETRIED = (404, 408, 429, 502, 503, 504)
BATCH = 32
TOLERANCE = 1e-4
SHOWN_WRONG = 5
SHOWN_BYTES = 300
# RFC 9110, sections 5.1 and 5.5.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CLIENTS_OWN = ("content-length", "transfer-encoding")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_ADVICE = (
    (
        re.compile(r"^(?:401|403|302|303)\b|^\s*<"),
        "The server, or a gateway before it, wants a login. From within the cluster use the URL of "
        "the service itself (kserve_deploy's output `cluster_url`).",
    ),
    (
        re.compile(r"^(?:301|307|308)\b"),
        "Something before the server sends requests elsewhere, mostly from http to https: give "
        "that address as url.",
    ),
    (
        re.compile(r"^404\b"),
        "Something answers there, but knows no such model: the model's name in the URL must be the "
        "service's, and the protocol v1. At a gateway that tells hosts apart, set the header Host.",
    ),
    (
        re.compile(r"^5\d\d\b"),
        "See the predictor's log (kubectl logs -l serving.kserve.io/inferenceservice=NAME).",
    ),
    (
        re.compile(r"CERTIFICATE_VERIFY_FAILED"),
        "This step does not trust the server's certificate, as of a gateway with a CA of its own: "
        "from within the cluster use kserve_deploy's output `cluster_url`.",
    ),
    (
        re.compile(r"WRONG_VERSION_NUMBER|record layer failure"),
        "What answers there speaks no TLS: begin url with http://.",
    ),
    (
        re.compile(r"NameResolutionError|NewConnectionError|ConnectTimeoutError"),
        "It cannot be reached from this step's pod: from within the cluster use kserve_deploy's "
        "output `cluster_url`.",
    ),
    (
        re.compile(r"ReadTimeoutError"),
        "The answer takes longer than request_timeout: raise it, or give the predictor more cpu.",
    ),
)
# Between two tries, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0


class WrongAnswers(StepError):
    """The model server answers, but not what it should."""


class NoAnswer(StepError):
    """The model server does not answer requests."""


@dataclass(frozen=True)
class Known:
    """A request with its known answer.

    Attributes:
        instance: What is sent.
        prediction: What must come back: an integer is compared with the answer's `class`.
    """

    instance: Any
    prediction: Any


@dataclass(frozen=True)
class Server:
    """Where and how requests are sent.

    Attributes:
        url: The URL that answers V1 predictions.
        headers: Headers besides the content type, such as a `Host` for an ingress.
        patience: Seconds that a server may take to become reachable, at each request.
        timeout: Seconds that one answer may take.
    """

    url: str
    headers: Mapping[str, str]
    patience: float
    timeout: float


def parse_requests(value: Any) -> list[Known]:
    """Read the input `requests`.

    Args:
        value: A list of `{"instance", "prediction"}` or `{"instances", "predictions"}`.

    Returns:
        The requests one by one.

    Raises:
        InputError: An element is neither, or its lists are empty or differ in length.
    """
    known = []
    for i, item in enumerate(readers.sequence("requests", value)):
        fields = set(item) if isinstance(item, dict) else set()
        if fields == {"instance", "prediction"}:
            known.append(Known(item["instance"], item["prediction"]))
        elif fields == {"instances", "predictions"}:
            known += _many(f"requests[{i}]", item["instances"], item["predictions"])
        else:
            raise InputError(
                f'requests[{i}] must be {{"instance": …, "prediction": …}} or {{"instances": […], '
                f'"predictions": […]}}; it has {sorted(fields) or "no fields"}.'
            )
    return known


def _many(name: str, instances: Any, predictions: Any) -> list[Known]:
    if not isinstance(instances, list) or not isinstance(predictions, list):
        raise InputError(f"{name}: instances and predictions must be lists.")
    if len(instances) != len(predictions):
        raise InputError(
            f"{name} has {len(instances)} instances but {len(predictions)} predictions."
        )
    if not instances:
        raise InputError(f"{name} has no instances; leave it out to ask the model's own samples.")
    return [Known(i, p) for i, p in zip(instances, predictions, strict=True)]


def parse_server(inputs: Mapping[str, Any]) -> Server:
    """Read the inputs that say where and how to ask.

    Args:
        inputs: `url`, `headers`, `ready_timeout` and `request_timeout`; others are not looked at.

    Returns:
        The server.

    Raises:
        InputError: One of them cannot work.
    """
    return Server(
        url=check_url(inputs.get("url")),
        headers=check_headers(inputs.get("headers")),
        patience=readers.integer("ready_timeout", inputs.get("ready_timeout"), default=120),
        timeout=readers.integer(
            "request_timeout", inputs.get("request_timeout"), default=30, minimum=1
        ),
    )


def check_url(url: Any) -> str:
    """Read the input `url`.

    Raises:
        InputError: It is no URL of a V1 predict endpoint.
    """
    text = readers.text("url", url).strip()
    try:
        parts, host = urlsplit(text), urllib3.util.parse_url(text).host or ""
        host.encode("idna")
    except (ValueError, urllib3.exceptions.LocationParseError) as error:
        raise InputError(f"url is {text!r}, which is no URL: {error}.") from None
    if "@" in parts.netloc:
        raise InputError("url holds a user's name; take it out, for it would be shown in the log.")
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"url is {text!r}; it must begin with http:// or https:// and a host.")
    if not parts.path.endswith(":predict"):
        raise InputError(
            f"url is {text!r}; it must be the exact URL of V1 predictions, which ends in "
            "/v1/models/NAME:predict, as kserve_deploy gives it."
        )
    return text


def check_headers(headers: Any) -> dict[str, str]:
    """Read the input `headers`.

    Raises:
        InputError: One cannot be a header; the message names it.
    """
    read = {
        name: readers.rendered(f"headers[{name!r}]", value)
        for name, value in readers.mapping("headers", headers).items()
    }
    for name, value in read.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InputError(f"headers has {name!r}, which is no header's name.")
        if name.lower() in _CLIENTS_OWN:
            raise InputError(f"headers may not have {name!r}: it follows from what is sent.")
        if not _HEADER_VALUE.fullmatch(value):
            # It may be a token, read from a file with the break at its end.
            raise InputError(
                f"headers[{name!r}] is not one line of Latin-1 text, as a header's value must be. "
                "Take line breaks away."
            )
    return read


def ask(server: Server, known: Sequence[Known]) -> list[Any]:
    """Gets a prediction for each request, some at a time.

    Args:
        server: Where to ask.
        known: The requests.

    Returns:
        The predictions, in order.

    Raises:
        NoAnswer: The server refused a request, or could not be reached within its patience.
        WrongAnswers: An answer is not of V1's form.
    """
    predictions: list[Any] = []
    with urllib3.PoolManager(retries=False, timeout=server.timeout) as http:
        for start in range(0, len(known), BATCH):
            instances = [item.instance for item in known[start : start + BATCH]]
            answer = _post(http, server, {"instances": instances})
            predictions += _predictions(answer, len(instances))
    return predictions


def _post(http: urllib3.PoolManager, server: Server, body: Any) -> bytes:
    """Posts once or, while the server is not there, again and again."""
    deadline = time.monotonic() + server.patience
    headers = {"content-type": "application/json", **server.headers}
    data, progress, pause = json.dumps(body).encode(), Progress(60.0), FIRST_PAUSE
    while True:
        try:
            response = http.request("POST", server.url, body=data, headers=headers, redirect=False)
            if response.status == 200:
                return response.data
            said = f"{response.status} {response.data[:SHOWN_BYTES].decode(errors='replace')}"
            retry = (
                response.status in RETRIED or b"not ready" in response.data[:SHOWN_BYTES].lower()
            )
        except urllib3.exceptions.HTTPError as error:
            said, retry = f"{type(error).__name__}: {error}", True
        if not retry:
            raise NoAnswer(f"{server.url} refused the request: {said}{_advice(said)}")
        if time.monotonic() + pause > deadline:
            raise NoAnswer(
                f"{server.url} did not answer within {server.patience:.0f} s (ready_timeout); the "
                f"last try gave: {said}{_advice(said)}"
            )
        progress.tell("waiting for an answer", said)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _advice(said: str) -> str:
    advice = patterns.advice(_ADVICE, said)
    return f"\n{advice}" if advice else ""


def _predictions(answer: bytes, count: int) -> list[Any]:
    try:
        predictions = json.loads(answer)["predictions"]
    except (ValueError, TypeError, KeyError, RecursionError):
        shown = answer[:SHOWN_BYTES].decode(errors="replace") or "it is empty"
        raise WrongAnswers(f'The answer has no "predictions": {shown}{_advice(shown)}') from None
    if not isinstance(predictions, list) or len(predictions) != count:
        raise WrongAnswers(f"{count} instances got {_short(predictions)} for predictions.")
    return predictions


def agrees(expected: Any, got: Any) -> bool:
    """Whether an answer is the known one.

    Args:
        expected: The known answer. An integer is compared with the answer's `class`.
        got: The answer.

    Returns:
        Whether they agree; floats do within 1 part in 10,000, for hardware differs.
    """
    if isinstance(expected, int) and isinstance(got, Mapping):
        return bool(got.get("class") == expected)
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return expected.keys() == got.keys() and all(agrees(expected[k], got[k]) for k in expected)
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(agrees, expected, got))
    if isinstance(expected, float) or isinstance(got, float):
        numbers = isinstance(expected, (int, float)) and isinstance(got, (int, float))
        return numbers and math.isclose(
            as_float(expected), as_float(got), rel_tol=TOLERANCE, abs_tol=TOLERANCE
        )
    return bool(expected == got)


def check(known: Sequence[Known], predictions: Sequence[Any]) -> None:
    """Compares answers with the known ones.

    Raises:
        WrongAnswers: Some differ; the message says which.
    """
    wrong = [i for i, k in enumerate(known) if not agrees(k.prediction, predictions[i])]
    if wrong:
        lines = [
            f"Request {i}: expected {_short(known[i].prediction)}, got {_short(predictions[i])}"
            for i in wrong[:SHOWN_WRONG]
        ]
        if len(wrong) > SHOWN_WRONG:
            lines.append(f"and {len(wrong) - SHOWN_WRONG} more")
        head = f"{len(wrong)} of {len(known)} answers are wrong."
        advice = (
            "The service runs another model than the one that gave the known answers, or its input "
            "is prepared in another way."
        )
        raise WrongAnswers("\n".join([head, *lines, advice]))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_BYTES else f"{text[:SHOWN_BYTES]}…"
