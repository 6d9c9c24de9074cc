from __future__ import annotations

import math
from typing import Any

import pytest
from kfp import dsl

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.steps.metric_gate import NO_MAXIMUM, NO_MINIMUM, MetricRefused, run

METRICS = {"accuracy": 0.953, "loss": 0.2}


def gate(
    metric: Any = "accuracy", minimum: Any = NO_MINIMUM, maximum: Any = NO_MAXIMUM, **metadata: Any
) -> float:
    metrics = dsl.Metrics(metadata=metadata or METRICS)
    return run(metrics, metric=metric, minimum=minimum, maximum=maximum)


def refused(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(MetricRefused) as raised:
        gate(*args, **kwargs)
    return raised.value.message


def test_a_metric_that_is_good_enough_passes_with_its_value() -> None:
    assert gate("accuracy", 0.95) == 0.953
    assert gate("accuracy", 0.953) == 0.953
    assert gate("loss", maximum=0.2) == 0.2
    assert gate("accuracy", 0.9, 1.0) == 0.953


def test_a_metric_beyond_its_threshold_is_refused_with_which_and_by_how_much() -> None:
    assert refused("accuracy", 0.97).startswith(
        "accuracy is 0.953, under the minimum of 0.97 by 0.017."
    )
    assert refused("loss", maximum=0.15).startswith(
        "loss is 0.2, over the maximum of 0.15 by 0.05."
    )


def test_a_metric_that_is_not_there_is_answered_with_those_that_are() -> None:
    said = refused("accurcy", 0.9)
    assert "no metric 'accurcy'" in said
    assert "accuracy = 0.953, loss = 0.2" in said
    assert "training diverged" in said


def test_what_is_no_number_is_no_metric() -> None:
    given = {"accuracy": "0.99", "flag": True, "display_name": "x", "other": 1}
    assert "accuracy is '0.99', which is no number" in refused("accuracy", 0.9, **given)
    assert "There is: other = 1" in refused("loss", 0.9, **given)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_a_value_that_is_not_finite_passes_no_threshold(value: float) -> None:
    assert "training diverged" in refused("loss", maximum=5, loss=value)


def test_a_run_without_metrics_is_told_how_training_reports_them() -> None:
    with pytest.raises(MetricRefused, match=r"are: none\. .* script\.report\("):
        run(dsl.Metrics(), metric="accuracy", minimum=0.9, maximum=NO_MAXIMUM)


def test_metrics_that_the_training_step_left_out_are_not_called_unreported() -> None:
    words = "12 metrics did not fit into the termination message; all are in s3://b/metrics.json."
    said = refused("f1", 0.9, accuracy=0.9, left_out=words)
    assert said.startswith(f"There is no metric 'f1'. {words} There is: accuracy = 0.9.")
    assert "script.report(" not in said


def test_why_nothing_is_known_of_the_metrics_is_said() -> None:
    words = "The result of training is not known: its pods were gone before their end was seen."
    assert words in refused("accuracy", 0.9, left_out=words)


def test_whole_numbers_from_ml_metadata_count() -> None:
    assert gate("epochs", 3, epochs=5) == 5.0


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"metric": ""}, "metric is not set"),
        ({}, "every value would pass"),
        ({"minimum": 2, "maximum": 1}, "no value can pass"),
        ({"minimum": "high"}, "must be a number"),
        ({"minimum": 10**400}, "must be a number"),
        ({"minimum": math.nan}, "finite number"),
        ({"maximum": math.inf}, "finite number"),
    ],
)
def test_a_gate_that_gates_nothing_is_refused(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        gate(**inputs)
    assert said in raised.value.message
