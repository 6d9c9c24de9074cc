"""The same pipeline gives the same package, byte for byte, whichever process compiles it."""

from __future__ import annotations

import os
import subprocess

from harness.command import COMMAND

from kfp_pytorch.client.packages import find

# The order of protobuf's maps changes with each process, that of Python's sets with the hash seed.
SEEDS = ("1", "2")
DEFAULTS = """
from kfp import dsl
from kfp_pytorch.components import metric_gate


@dsl.pipeline(description="Gates.")
def gating(
    table: dict = {"value": 1, "key": "a", "operator": "b", "effect": {"z": 1e20, "y": [], "x": 1}},
    rows: list = [{"nodes": 2, "gpus": 0, "batch_size": 64, "ranks": 1, "seed": 7, "epochs": 3}],
):
    metric_gate(metrics=dsl.importer("s3://b/n", dsl.Metrics).output, metric="a", minimum=0.5)
"""


def test_two_processes_compile_defaults_that_are_dicts_to_the_same_bytes(tmp_path):
    path = tmp_path / "gating.py"
    path.write_text(DEFAULTS)
    targets = [tmp_path / f"{seed}.yaml" for seed in SEEDS]
    for seed, target in zip(SEEDS, targets, strict=True):
        subprocess.run(
            [*COMMAND, "compile", path, "--output", target],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
    first, second = (target.read_bytes() for target in targets)
    assert first == second
    header = find.parse(first.decode(), path).header
    assert "rows: list [Default: [{'batch_size': 64.0, 'epochs': 3.0, 'gpus': 0.0, " in header
    assert "'effect': {'x': 1.0, 'y': [], 'z': 1e+20}, 'key': 'a', " in header
