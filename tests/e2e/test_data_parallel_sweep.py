"""Jobs of several sizes, one after the other, and their comparison."""

from __future__ import annotations

import json
from typing import Any

import pytest

# Two trainings, one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.local_cluster, pytest.mark.timeout(1200)]
ONE = {"num_nodes": 1, "nproc_per_node": 1, "gpus_per_node": 0, "batch_size": 32}


def test_two_sizes_are_trained_and_compared(cluster: Any) -> None:
    sizes = json.dumps([ONE, {**ONE, "num_nodes": 2}])
    ran = cluster.run("data_parallel_sweep", sizes=sizes, epochs=2)
    assert ran.code == 0, ran.stderr
    table = ran.artifact("table")
    one, two = (line.split(" | ") for line in table.splitlines() if line.startswith("| train-"))
    assert (one[1], two[1]) == ("1", "2")
    assert one[5] == "100.0%"
    assert float(two[3]) > 0, table
    for name in ("samples_per_second", "scaling efficiency", "accuracy"):
        assert f"<figcaption>{name}<" in ran.artifact("plot")
    metrics = ran.summary["metrics"]
    assert metrics["jobs"] == 2
    assert metrics["scaling_efficiency"] > 0
