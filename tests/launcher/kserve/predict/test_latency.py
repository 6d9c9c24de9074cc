from __future__ import annotations

from kfp_pytorch.launcher.kserve.predict.latency import percentile, summary


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(i) for i in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.95, 0.99, 1.0)] == [
        *(1.0, 50.0, 95.0, 99.0, 100.0),
    ]
    assert percentile([7.0], 0.5) == 7.0


def test_nothing_measured_is_no_figure() -> None:
    assert summary([]) == {}
    assert summary([2.0, 1.0]) == {"p50": 1.0, "p90": 2.0, "p95": 2.0, "p99": 2.0, "max": 2.0}
