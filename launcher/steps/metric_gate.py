"""The step `metric_gate`: lets a pipeline go on only with a metric that is good enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.readers import as_float
from kfp_pytorch.launcher.runtime.printing import say

# What stands for no threshold: KFP has no default that is null, and JSON no infinity.
NO_MINIMUM = -1e308
NO_MAXIMUM = 1e308


class MetricsArtifact(Protocol):
    """What this step needs of a Metrics artifact."""

    metadata: dict[str, Any]


class MetricRefused(StepError):
    """A metric is beyond its threshold, missing, or no finite number."""


def run(metrics: MetricsArtifact, metric: str, minimum: float, maximum: float) -> float:
    """Compare a metric with its thresholds.

    Args:
        metrics: The artifact whose metadata are the metrics.
        metric: The metric's name.
        minimum: The smallest value that passes; -1e308 for none.
        maximum: The largest value that passes; 1e308 for none.

    Returns:
        The metric's value.

    Raises:
        InputError: If no metric is named, or the thresholds leave nothing to pass or to refuse.
        MetricRefused: If the value is beyond a threshold, not finite, or not there.
    """
    name = metric_name(metric)
    low, high = thresholds(minimum, maximum)
    value = _value(metrics.metadata, name)
    if value < low:
        raise _refused(name, value, "under the minimum of", low)
    if value > high:
        raise _refused(name, value, "over the maximum of", high)
    say(f"{name} is {value:g}: passed{_bounds(low, high)}.")
    return value


def metric_name(metric: Any) -> str:
    """Read the name of the metric.

    Raises:
        InputError: If none is named.
    """
    name = readers.text("metric", metric)
    if not name:
        raise InputError("metric is not set; give the name of the metric, such as accuracy.")
    return name


def thresholds(minimum: Any, maximum: Any) -> tuple[float, float]:
    """Read the thresholds.

    Args:
        minimum: The smallest value that passes; -1e308 or unset for none.
        maximum: The largest value that passes; 1e308 or unset for none.

    Returns:
        Both, the one that is not set as -1e308 or 1e308.

    Raises:
        InputError: If one is no finite number, or they leave nothing to pass or to refuse.
    """
    low = _threshold("minimum", minimum, NO_MINIMUM)
    high = _threshold("maximum", maximum, NO_MAXIMUM)
    if low <= NO_MINIMUM and high >= NO_MAXIMUM:
        raise InputError("Neither minimum nor maximum is set, so every value would pass.")
    if low > high:
        raise InputError(f"minimum {low:g} is above maximum {high:g}: no value can pass.")
    return low, high


def _threshold(name: str, value: Any, default: float) -> float:
    if readers.unset(value):
        return default
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, not {value!r}.") from None
    if not math.isfinite(number):
        raise InputError(f"{name} is {number}; it must be a finite number.")
    return number


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
    if not numbers:
        raise MetricRefused(
            f"There is no metric {name!r}; there are: none. Training reports metrics as JSON in "
            "the file that KFP_PYTORCH_TERMINATION_LOG names, as the README shows. One whose last "
            "value was not a finite number is left out: then training diverged."
        )
    if name not in numbers:
        raise MetricRefused(
            f"There is no metric {name!r}; there {'is' if len(numbers) == 1 else 'are'}: {there}. "
            "A metric whose last value was not a finite number is left out: then training diverged."
        )
    if not math.isfinite(numbers[name]):
        raise MetricRefused(
            f"{name} is {numbers[name]}, which passes no threshold: training diverged. The "
            f"metrics are: {there}."
        )
    return numbers[name]


def _refused(name: str, value: float, words: str, threshold: float) -> MetricRefused:
    by = abs(value - threshold)
    return MetricRefused(
        f"{name} is {value:.6g}, {words} {threshold:.6g} by {by:.6g}. The pipeline stops here."
    )


def _bounds(low: float, high: float) -> str:
    parts = [f"at least {low:g}"] if low > NO_MINIMUM else []
    parts += [f"at most {high:g}"] if high < NO_MAXIMUM else []
    return f" ({' and '.join(parts)})"
