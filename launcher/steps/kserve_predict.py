"""The step `kserve_predict`: requests with known answers, and whether they came back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from kfp_pytorch.launcher.kserve.predict import cases, samples
from kfp_pytorch.launcher.kserve.predict.asking import Asked, ask
from kfp_pytorch.launcher.kserve.predict.connecting import connect
from kfp_pytorch.launcher.kserve.predict.exchange import WrongAnswers
from kfp_pytorch.launcher.kserve.predict.inputs import parse_inputs
from kfp_pytorch.launcher.kserve.predict.judging import check
from kfp_pytorch.launcher.kserve.predict.target import resolve
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
    content = samples.content_of(model)
    requests = given.requests or samples.predicted(content, target)
    asking = cases.build(target, requests, given.batch_size, samples.model_input(content))
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
