"""The step `canary_check`: real requests to a canary and to the stable revision, and a decision."""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

from kfp_pytorch.launcher.kserve.canary.check_inputs import CheckInputs, parse_inputs, sides
from kfp_pytorch.launcher.kserve.canary.comparison import compare
from kfp_pytorch.launcher.kserve.canary.inputs import PROMOTE
from kfp_pytorch.launcher.kserve.canary.measuring import CANARY, STABLE, Side, Try, measure
from kfp_pytorch.launcher.kserve.predict import cases, samples
from kfp_pytorch.launcher.kserve.predict.connecting import connect
from kfp_pytorch.launcher.kserve.predict.target import resolve
from kfp_pytorch.launcher.outputs.comparison import render, without_canary
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log

_NO_CANARY = "there is no canary: the revision that was deployed gets all of the traffic already"


class Outputs(NamedTuple):
    """The output parameters."""

    decision: str
    reason: str


def run(report: Artifact, model: Artifact | None = None, **inputs: Any) -> Outputs:
    """Compares a canary with the stable revision.

    `model`: the canary's Model, whose content has the held-out samples; None where requests are
    given. Returns `promote` or `rollback`, and why. Raises InputError: an input cannot work, or
    there is nothing to ask.
    """
    given = parse_inputs(**inputs)
    if not given.canary_url:
        log(_NO_CANARY)
        write(report, without_canary(_NO_CANARY))
        return Outputs(PROMOTE, _NO_CANARY)
    tries = _measure(given, samples.content_of(model))
    found = compare(tries, given)
    write(report, render(found, tries))
    log(f"{found.decision}: {found.reason}")
    return Outputs(found.decision, found.reason)


def _measure(given: CheckInputs, content: samples.Content) -> list[Try]:
    with contextlib.ExitStack() as clients:
        asked = []
        for name, how in zip((CANARY, STABLE), sides(given), strict=True):
            target = resolve(how.url, how.protocol, how.model_name)
            requests = how.requests or samples.labelled(content, target)
            made = cases.build(target, requests, 1, samples.model_input(content))
            client = connect(target, how, os.environ)
            clients.enter_context(client)
            asked.append(Side(name, target.url, client, made))
        return measure(
            asked,
            given.request_count,
            given.concurrency,
            given.ready_timeout,
            given.request_timeout,
        )
