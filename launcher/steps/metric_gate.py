"""The step `metric_gate`: lets a pipeline continue only with a metric that is good enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.constants import SCRIPT_GUIDE
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.inputs.readers import as_float
from kfp_pytorch.launcher.runtime.artifact import Artifact
from kfp_pytorch.launcher.runtime.printing import log

# What stands for no threshold: KFP has no default that is null, and JSON no infinity.
NO_MINIMUM = -1e308
NO_MAXIMUM = 1e308
_DIVERGED = "A metric whose last value was not a finite number is left out: then training diverged."


class MetricRefused(StepError):
    """A metric is beyond its threshold, missing, or no finite number."""


@dataclass(frozen=True)
class GateInputs:
    """The checked inputs of `metric_gate`."""

    metric: str = declare(readers.text, "accuracy")
    minimum: float = declare(readers.number, NO_MINIMUM)
    maximum: float = declare(readers.number, NO_MAXIMUM)


def run(metrics: Artifact, **inputs: Any) -> float:
    """Compare a metric with its thresholds.

    Raises InputError: if no metric is named, or the thresholds leave nothing to pass or to refuse.
    Raises MetricRefused: if the value is beyond a threshold, not finite, or not there.
    """
    given = parse_inputs(**inputs)
    value = _value(metrics.metadata, given.metric)
    if value < given.minimum:
        raise _refused(given.metric, value, "under the minimum of", given.minimum)
    if value > given.maximum:
        raise _refused(given.metric, value, "over the maximum of", given.maximum)
    log(f"{given.metric} is {value:g}: passed{_bounds(given.minimum, given.maximum)}.")
    return value


def parse_inputs(**inputs: Any) -> GateInputs:
    """Check the inputs of `metric_gate`, the metrics not counted.

    Raises InputError: one cannot work, or the thresholds leave nothing to pass or to refuse.
    """
    if "metric" in inputs and readers.is_unset(inputs["metric"]):
        raise InputError("metric is not set; give the name of the metric, such as accuracy.")
    given = parse(GateInputs, "metric_gate", inputs)
    low, high = given.minimum, given.maximum
    if low <= NO_MINIMUM and high >= NO_MAXIMUM:
        raise InputError("Neither minimum nor maximum is set, so every value would pass.")
    if low > high:
        raise InputError(f"minimum {low:g} is above maximum {high:g}: no value can pass.")
    return given


def _value(metadata: Mapping[str, Any], name: str) -> float:
    numbers = {
        key: as_float(value)
        for key, value in (metadata or {}).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    if name in (metadata or {}) and name not in numbers:
        raise MetricRefused(
            f"{name} is {metadata[name]!r}, which is no number, so it passes no threshold. Whoever "
            "reports it must do so as a number."
        )
    there = ", ".join(f"{key} = {value:g}" for key, value in sorted(numbers.items())) or "none"
    if name not in numbers:
        # The step that trained says what it had to leave out: first, for a list may be long.
        left_out = str((metadata or {}).get("left_out") or "")
        are = "is" if len(numbers) == 1 else "are"
        words = [f"There is no metric {name!r}.", left_out, f"There {are}: {there}."]
        words += [] if left_out else [_DIVERGED]
        words += [] if numbers or name in left_out else [_reports(name)]
        raise MetricRefused(" ".join(filter(None, words)))
    if not math.isfinite(numbers[name]):
        raise MetricRefused(
            f"{name} is {numbers[name]}, which passes no threshold: training diverged. The "
            f"metrics are: {there}."
        )
    return numbers[name]


def _reports(name: str) -> str:
    return (
        "A script reports metrics with `from kfp_pytorch.training import script`: "
        f"script.report({{{name!r}: …}}, step=…); {SCRIPT_GUIDE} shows it."
    )


def _refused(name: str, value: float, words: str, threshold: float) -> MetricRefused:
    by = abs(value - threshold)
    return MetricRefused(
        f"{name} is {value:.6g}, {words} {threshold:.6g} by {by:.6g}. The pipeline stops here."
    )


def _bounds(low: float, high: float) -> str:
    parts = [f"at least {low:g}"] if low > NO_MINIMUM else []
    parts += [f"at most {high:g}"] if high < NO_MAXIMUM else []
    return f" ({' and '.join(parts)})"
