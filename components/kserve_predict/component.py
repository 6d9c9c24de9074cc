"""Checks a model server's answers against known ones."""

# ruff: noqa: B006, D417 - kfp reads the defaults, and describes outputs from "Returns"

from typing import Any, NamedTuple

from kfp.dsl import Input, Markdown, Model, Output

from kfp_pytorch.components.caching import uncached
from kfp_pytorch.components.embedding import launcher_component


@uncached
@launcher_component
def kserve_predict(
    url: str,
    model: Input[Model],
    report: Output[Markdown],
    requests: list[Any] = [],
    headers: dict[str, Any] = {},
    ready_timeout: int = 120,
    request_timeout: int = 30,
) -> NamedTuple("Outputs", correct=float, sample_prediction=str):  # type: ignore[valid-type]
    """Sends requests with known answers to a model server and fails on a wrong answer.

    A server that cannot be reached yet (such as 404, 503, no connection, "not ready") is asked
    again until ready_timeout; one that refuses the request (such as 400, 401, 403) is not.

    Args:
        url: The exact URL of V1 predictions, as kserve_deploy's url or cluster_url.
        model: The model that is served; its held-out samples are what is asked.
        requests: Requests to send instead of the samples: a list of
            {"instance": …, "prediction": …} or {"instances": […], "predictions": […]}. An integer
            is compared with the answer's class, anything else with the whole answer.
        headers: HTTP headers, such as {"Host": "…"} for an ingress; nothing secret.
        ready_timeout: Seconds that the server may take to become reachable.
        request_timeout: Seconds that one answer may take.

    Returns:
        report: The requests with their answers.
        correct: The share of right answers.
        sample_prediction: The first answer, as JSON.
    """
    inputs = dict(locals())
    from kfp_pytorch.launcher import run_step

    return run_step("kserve_predict", **inputs)
