"""The inputs of `canary_check`: their declaration and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.kserve.predict import inputs as predict_inputs
from kfp_pytorch.launcher.kserve.predict.inputs import PROTOCOLS, PredictInputs
from kfp_pytorch.launcher.kserve.predict.latency import PERCENTILES

# What is given to both sides, as to `kserve_predict`.
_OF_BOTH = (
    *("protocol", "model_name", "requests", "headers", "token_env", "token_file", "ca_file"),
    *("concurrency", "ready_timeout", "request_timeout"),
)


def _seconds(name: str, value: Any) -> float:
    seconds = readers.number(name, value)
    if seconds < 0:
        raise InputError(f"{name} is {seconds:g}; it must be seconds, 0 or more.")
    return seconds


def _ratios(name: str, value: Any) -> dict[str, float]:
    ratios = {
        key: readers.number(f"{name}[{key!r}]", item)
        for key, item in readers.known_fields(name, value, list(PERCENTILES)).items()
    }
    for key, ratio in ratios.items():
        if ratio <= 0:
            raise InputError(f"{name}[{key!r}] is {ratio:g}; it must be more than 0.")
    return ratios


_count = partial(readers.integer, minimum=1)


@dataclass(frozen=True)
class CheckInputs:
    """The checked inputs of `canary_check`."""

    canary_url: str = declare(readers.text, "")
    stable_url: str = declare(readers.text, "")
    protocol: str = declare(readers.one_of("", *PROTOCOLS), "")
    model_name: str = declare(readers.text, "")
    requests: list[Any] = declare(readers.sequence, [])
    headers: dict[str, Any] = declare(readers.mapping, {})
    token_env: str = declare(readers.text, "")
    token_file: str = declare(readers.text, "")
    ca_file: str = declare(readers.text, "")
    request_count: int = declare(partial(_count, maximum=100_000), 200)
    concurrency: int = declare(partial(_count, maximum=256), 2)
    max_error_rate: float = declare(readers.share, 0.0)
    max_latency_ratio: dict[str, float] = declare(_ratios, {"p50": 2.0, "p95": 2.0})
    latency_tolerance: float = declare(_seconds, 0.05)
    min_accuracy: float = declare(readers.share, 0.0)
    max_accuracy_drop: float = declare(readers.share, 0.05)
    min_agreement: float = declare(readers.share, 0.0)
    ready_timeout: int = declare(readers.integer, 120)
    request_timeout: int = declare(_count, 30)


def parse_inputs(**inputs: Any) -> CheckInputs:
    """Check the inputs of `canary_check`, the model and its samples not counted.

    Raises InputError: one cannot work, or two contradict each other.
    """
    given = parse(CheckInputs, "canary_check", inputs)
    if bool(given.canary_url) != bool(given.stable_url):
        missing = "stable_url" if given.canary_url else "canary_url"
        raise InputError(
            f"{missing} is not set. Give both, as kserve_deploy's outputs canary_url and "
            "stable_url, which are both empty where there is no canary."
        )
    if given.canary_url and given.canary_url == given.stable_url:
        raise InputError(
            f"canary_url and stable_url are both {given.canary_url!r}: there is nothing to compare."
        )
    if given.canary_url:
        sides(given)
    return given


def sides(given: CheckInputs) -> tuple[PredictInputs, PredictInputs]:
    """Return how the canary and how the stable revision are asked. Raises InputError."""
    of_both = {name: getattr(given, name) for name in _OF_BOTH}
    canary, stable = (
        predict_inputs.parse_inputs(url=url, **of_both)
        for url in (given.canary_url, given.stable_url)
    )
    return canary, stable
