"""Compares answers with known ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.inputs.readers import as_float


@dataclass(frozen=True)
class Tolerance:
    """How far a number may be from the expected one: atol + rtol × |expected|, as in numpy."""

    rtol: float = 1e-4  # hardware differs
    atol: float = 1e-4


def agrees(expected: Any, got: Any, tolerance: Tolerance = Tolerance()) -> bool:
    """Whether an answer is the expected one.

    `expected`: JSON. A whole number is compared with the answer's `class`, or, where the answer is
    a list of numbers, with the place of the highest. NaN and infinity agree with nothing.
    """
    if _is_integer(expected) and isinstance(got, Mapping):
        return bool(got.get("class") == expected)
    if _is_integer(expected) and is_scores(got):
        return bool(highest(got) == expected)
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        return expected.keys() == got.keys() and all(
            agrees(value, got[key], tolerance) for key, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(
            agrees(*pair, tolerance) for pair in zip(expected, got, strict=True)
        )
    if isinstance(expected, float) or isinstance(got, float):
        return _is_number(expected) and _is_number(got) and _is_close(expected, got, tolerance)
    return bool(expected == got)


def is_scores(value: Any) -> bool:
    """Whether it is a list of two or more numbers, as a classifier's output."""
    return isinstance(value, list) and len(value) > 1 and all(map(_is_number, value))


def highest(scores: Sequence[float]) -> int:
    """Return the place of the highest score."""
    return max(range(len(scores)), key=lambda i: scores[i])


def has_not_finite(value: Any) -> bool:
    """Whether NaN or an infinity is anywhere in JSON."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(has_not_finite, value.values()))
    return isinstance(value, list) and any(map(has_not_finite, value))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_close(expected: float, got: float, tolerance: Tolerance) -> bool:
    wanted, found = as_float(expected), as_float(got)
    if not (math.isfinite(wanted) and math.isfinite(found)):
        return False
    return abs(found - wanted) <= tolerance.atol + tolerance.rtol * abs(wanted)
