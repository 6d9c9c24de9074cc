"""Percentiles of latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Before the name of a percentile, that of the time until the first token.
OF_FIRST = "first_token_"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that a share of the values, from 0 to 1, does not exceed.

    `values`: at least one. The nearest-rank method: what is returned was measured.
    """
    ordered = sorted(values)
    # Twelve digits, for 0.95 × 100 is a little more than 95.
    return ordered[max(0, math.ceil(round(share * len(ordered), 12)) - 1)]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p95, p99 and max; nothing where nothing was measured."""
    return {name: percentile(seconds, share) for name, share in PERCENTILES.items() if seconds}
