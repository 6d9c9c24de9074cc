"""Sends requests with known answers to a model server and compares what comes back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import urllib3

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.inputs.readers import as_float
from kfp_pytorch.launcher.kserve.predict_inputs import Known, PredictInputs
from kfp_pytorch.launcher.kserve.rollout import port_forward_advice
from kfp_pytorch.launcher.kubernetes.transport import read_body
from kfp_pytorch.launcher.runtime.printing import Progress
from kfp_pytorch.launcher.text import cut

# Right after a rollout: no route yet, no pod behind the route yet, a pod that loads its model.
RETRIED = (404, 408, 429, 502, 503, 504)
BATCH = 32
TOLERANCE = 1e-4
SHOWN_WRONG = 5
SHOWN_BYTES = 300
# Between two tries, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0


class WrongAnswers(StepError):
    """The model server answers, but not what it should."""


class NoAnswer(StepError):
    """The model server does not answer requests."""


def ask(server: PredictInputs, known: Sequence[Known]) -> list[Any]:
    """Gets a prediction for each request, some at a time.

    Returns the predictions, in order. Raises NoAnswer: the server refused a request, or could not
    be reached within ready_timeout. Raises WrongAnswers: an answer is not of V1's form.
    """
    predictions: list[Any] = []
    with urllib3.PoolManager(retries=False, timeout=server.request_timeout) as http:
        for start in range(0, len(known), BATCH):
            instances = [item.instance for item in known[start : start + BATCH]]
            answer = _post(http, server, {"instances": instances})
            predictions += _predictions(answer, len(instances))
    return predictions


def _post(http: urllib3.PoolManager, server: PredictInputs, body: Any) -> bytes:
    """Posts once or, while the server is not there, again and again."""
    deadline = time.monotonic() + server.ready_timeout
    headers = {"content-type": "application/json", **server.headers}
    data, progress, pause = json.dumps(body).encode(), Progress(60.0), FIRST_PAUSE
    while True:
        try:
            response = http.request(
                "POST", server.url, body=data, headers=headers,
                redirect=False, preload_content=False,
            )  # fmt: skip
            answer = read_body(response, server.request_timeout)
            if response.status == 200:
                return answer
            said = f"{response.status} {answer[:SHOWN_BYTES].decode(errors='replace')}"
            retry = response.status in RETRIED or b"not ready" in answer[:SHOWN_BYTES].lower()
        except urllib3.exceptions.HTTPError as error:
            said, retry = f"{type(error).__name__}: {error}", True
        if not retry:
            raise NoAnswer(f"{server.url} refused the request: {said}{_advice(said, server.url)}")
        if time.monotonic() + pause > deadline:
            raise NoAnswer(
                f"{server.url} did not answer within {server.ready_timeout} s (ready_timeout); the "
                f"last try gave: {said}{_advice(said, server.url)}"
            )
        progress.report("waiting for an answer", said)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _advice(said: str, url: str = "") -> str:
    parts = urlsplit(url)
    service, _, rest = (parts.hostname or "").partition(".")
    unreachable = patterns.advice("unreachable", said)
    if unreachable and ".svc" in f".{rest}":
        predictor = f"{service.removesuffix('-predictor')}-predictor"
        return f"\n{port_forward_advice(predictor, rest.partition('.')[0], parts.path)}"
    advice = patterns.advice("prediction", said) or unreachable
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

    `expected`: the known answer. An integer is compared with the answer's `class`. Returns whether
    they agree; floats do within 1 part in 10,000, for hardware differs.
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

    Raises WrongAnswers: some differ; the message says which.
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
    return cut(json.dumps(value, ensure_ascii=False), SHOWN_BYTES)
