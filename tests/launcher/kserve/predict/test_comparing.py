from __future__ import annotations

import math
from typing import Any

import pytest

from kfp_pytorch.launcher.kserve.predict.comparing import Tolerance, agrees, has_not_finite


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (3, {"class": 3, "score": 0.2}, True),
        (3, {"class": 4}, False),
        (3, {"label": "3"}, False),
        (3, 3, True),
        (3, 3.0, True),
        (2, [0.1, 0.2, 0.7], True),
        (1, [0.1, 0.2, 0.7], False),
        (1, [1], False),
        (0.25, 0.250001, True),
        (0.25, 0.26, False),
        ([0.1, [0.2]], [0.1000001, [0.2]], True),
        ([0.1], [0.1, 0.2], False),
        ({"class": 1, "score": 0.5}, {"class": 1, "score": 0.50001}, True),
        ({"class": 1}, {"class": 1, "score": 0.5}, False),
        ("cat", "cat", True),
        ("cat", "dog", False),
        (0.5, "0.5", False),
        (1.0, None, False),
        (1.5, 10**400, False),
        (math.nan, math.nan, False),
        (math.inf, math.inf, False),
        (True, 1.0, False),
    ],
)
def test_answers_are_compared_as_what_they_are(expected: Any, got: Any, same: bool) -> None:
    assert agrees(expected, got) is same


def test_a_tolerance_is_relative_to_the_expected_number_and_absolute() -> None:
    assert agrees(100.0, 101.0, Tolerance(rtol=0.01, atol=0.0))
    assert not agrees(100.0, 101.1, Tolerance(rtol=0.01, atol=0.0))
    assert agrees(0.0, 0.1, Tolerance(rtol=0.01, atol=0.1))


def test_numbers_that_are_none_are_found_wherever_they_are() -> None:
    assert has_not_finite([1, {"a": [0.5, math.nan]}])
    assert not has_not_finite([1, {"a": [0.5, "NaN", 10**400]}])
