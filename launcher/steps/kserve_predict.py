"""The step `kserve_predict`: requests with known answers, and whether they came back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict import cases
from kfp_pytorch.launcher.kserve.predict.asking import Asked, ask
from kfp_pytorch.launcher.kserve.predict.connecting import connect
from kfp_pytorch.launcher.kserve.predict.exchange import WrongAnswers
from kfp_pytorch.launcher.kserve.predict.forms import Given, Known
from kfp_pytorch.launcher.kserve.predict.inputs import parse_inputs
from kfp_pytorch.launcher.kserve.predict.judging import check
from kfp_pytorch.launcher.kserve.predict.protocols.v2 import InputTensor
from kfp_pytorch.launcher.kserve.predict.target import Target, resolve
from kfp_pytorch.launcher.outputs.predictions import metrics, render, rounded
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log, printable


class Outputs(NamedTuple):
    """The output parameters."""

    correct: float
    sample_prediction: str


def run(
    predictions: Artifact, latencies: Artifact, model: Artifact | None = None, **inputs: Any
) -> Outputs:
    """Checks a service's answers.

    `model`: the Model, whose content has the held-out samples; None where requests are given.
    Returns the share of right answers, and one of them. Raises InputError: an input cannot work, or
    there is nothing to ask. Raises NoAnswer: the server cannot be reached or refuses the requests.
    Raises WrongAnswers: an answer is not the known one, or has another form. Raises TooSlow: a
    latency is over its limit.
    """
    given = parse_inputs(**inputs)
    target = resolve(given.url, given.protocol, given.model_name)
    content = _content(Path(model.path)) if model else {}
    requests = given.requests or _samples(content, target)
    asking = cases.build(target, requests, given.batch_size, _model_input(content))
    try:
        with connect(target, given, os.environ) as client:
            asked = ask(client, asking, target.url, given)
        write(predictions, render(target, asked, given.concurrency))
        _write_latencies(latencies, metrics(asked))
        correct = check(asked, given)
    except RecursionError:
        raise WrongAnswers("An answer is nested too deep to be read.") from None
    log(_summary(asked, correct))
    answer = asked.outcomes[0].answers.items[0]
    sample = printable(json.dumps(rounded(answer), ensure_ascii=False))
    return Outputs(correct=correct, sample_prediction=sample)


def _content(path: Path) -> Mapping[str, Any]:
    """The Model's content, which is JSON where training made it."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _samples(content: Mapping[str, Any], target: Target) -> Sequence[Given]:
    """The held-out samples in the Model's content."""
    try:
        known = [Known(s["instance"], s["prediction"]) for s in content["samples"]]
    except (ValueError, TypeError, KeyError):
        known = []
    if not known or target.protocol == "openai":
        raise InputError(
            "There is nothing to ask: the model has no held-out samples (they are left out where "
            "they do not fit into training's termination message, and an imported model has none). "
            'Give `requests`, a list of {"instance": …, "prediction": …}, or in the OpenAI '
            'protocol of {"messages": […], "expected": …}.'
        )
    return known


def _model_input(content: Mapping[str, Any]) -> InputTensor | None:
    """The model's one input, as its description has it."""
    try:
        (given,) = content["model"]["inputs"]
        return InputTensor(str(given["name"]), str(given["datatype"]))
    except (ValueError, TypeError, KeyError):
        return None


def _write_latencies(latencies: Artifact, found: Mapping[str, float]) -> None:
    latencies.metadata.update(found)
    # Without a file the KFP UI shows an error in the place of the artifact's content.
    write(latencies, json.dumps(found, indent=2))


def _summary(asked: Asked, correct: float) -> str:
    compared = [is_right for each in asked.outcomes for is_right in each.right]
    known = sum(is_right is not None for is_right in compared)
    if not known:
        return f"{len(compared)} answers have the protocol's form; none had an expected one"
    if correct < 1:
        return f"{correct:.1%} of {known} answers are the expected ones"
    return f"all {known} answers are the expected ones"
