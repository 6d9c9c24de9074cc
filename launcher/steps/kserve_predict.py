"""The step `kserve_predict`: requests with known answers, and whether they came back."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.declaration import parse
from kfp_pytorch.launcher.kserve.predict import v1
from kfp_pytorch.launcher.kserve.predict.comparing import agrees
from kfp_pytorch.launcher.kserve.predict.exchange import WrongAnswers, shown
from kfp_pytorch.launcher.kserve.predict.http import HttpClient, Server
from kfp_pytorch.launcher.kserve.predict.inputs import Known, PredictInputs
from kfp_pytorch.launcher.kserve.predict.sending import until_answered
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log, printable

BATCH = 32
SHOWN_WRONG = 5
SHOWN_ANSWERS = 20
SHOWN_CHARACTERS = 200


class Outputs(NamedTuple):
    """The output parameters."""

    correct: float
    sample_prediction: str


def run(model: Artifact, predictions: Artifact, **inputs: Any) -> Outputs:
    """Checks a service's answers.

    `model`: the Model, whose content has the held-out samples. Returns the share of right answers,
    and one of them. Raises InputError: an input cannot work, or there is nothing to ask. Raises
    NoAnswer: the server cannot be reached or refuses the requests. Raises WrongAnswers: an answer
    is not the known one; the message says which.
    """
    server = parse(PredictInputs, "kserve_predict", inputs)
    known = server.requests or _samples(Path(model.path))
    started = time.monotonic()
    answers = _ask(server, known)
    seconds = time.monotonic() - started
    try:
        write(predictions, printable(_render(server.url, known, answers, seconds)))
        _check(known, answers)
    except RecursionError:
        raise WrongAnswers("An answer is nested too deep to be read.") from None
    log(f"all {len(known)} answers are the expected ones")
    sample = printable(json.dumps(_rounded(answers[0]), ensure_ascii=False))
    return Outputs(correct=1.0, sample_prediction=sample)


def _ask(inputs: PredictInputs, known: Sequence[Known]) -> list[Any]:
    predictions: list[Any] = []
    server = Server(inputs.url, inputs.headers, inputs.request_timeout)
    with HttpClient(server) as client:
        for start in range(0, len(known), BATCH):
            batch = [item.instance for item in known[start : start + BATCH]]
            replies = until_answered(client, v1.build(batch), inputs.url, inputs.ready_timeout)
            predictions += v1.read(replies[-1].body, len(batch))
    return predictions


def _check(known: Sequence[Known], predictions: Sequence[Any]) -> None:
    wrong = [i for i, k in enumerate(known) if not agrees(k.prediction, predictions[i])]
    if wrong:
        lines = [
            f"Request {i}: expected {shown(known[i].prediction)}, got {shown(predictions[i])}"
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


def _samples(path: Path) -> list[Known]:
    """The held-out samples in the Model's content."""
    try:
        content = json.loads(path.read_bytes())
        known = [Known(s["instance"], s["prediction"]) for s in content["samples"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        known = []
    if not known:
        raise InputError(
            "There is nothing to ask: the model has no held-out samples (they are left out where "
            "they do not fit into training's termination message, and an imported model has none). "
            'Give `requests`, a list of {"instance": …, "prediction": …}.'
        )
    return known


def _render(url: str, known: Sequence[Known], predictions: Sequence[Any], seconds: float) -> str:
    lines = [
        "# Answers of the model server",
        "",
        f"{len(known)} requests to `{url}` took {seconds:.2f} s.",
        "",
        "| request | expected | answer |",
        "| --- | --- | --- |",
    ]
    for i, (item, got) in enumerate(zip(known, predictions, strict=True)):
        if i == SHOWN_ANSWERS:
            lines.append(f"| … | {len(known) - i} more | |")
            break
        lines.append(f"| {i} | {_cell(item.prediction)} | {_cell(got)} |")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    text = json.dumps(_rounded(value), ensure_ascii=False)[:SHOWN_CHARACTERS]
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"


def _rounded(value: Any) -> Any:
    """Copy JSON with four digits of each fraction: scores have no more that mean anything."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.4g}") if abs(value) < 1 else round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
