"""Loops whose items cannot work are found before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from kfp_pytorch.client.packages import checks, find

SIZE = {"num_nodes": 1, "nproc_per_node": 1, "gpus_per_node": 0, "batch_size": 64}
MINE = """
from kfp import dsl
from kfp_pytorch.components import pytorch_job

@dsl.pipeline
def mine(items: list = [], run: bool = True):
    with dsl.If(run == True):
        with dsl.ParallelFor(items) as item:
            pytorch_job(image="i", num_nodes=item.nodes)
"""


def sweep(**arguments: Any) -> None:
    checks.check(find.find_one("data_parallel_sweep"), arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": []}, "The list 'sizes' is empty, and a later task takes what the loop makes"),
        ({"sizes": {"num_nodes": 1}}, "The list 'sizes' is {'num_nodes': 1}; a loop takes a list"),
        ({"sizes": [2, 4]}, "The list 'sizes' has the item 4 without 'batch_size'"),
        ({"sizes": [{"num_nodes": 2}]}, "has the item {'num_nodes': 2} without 'batch_size'"),
        ({"sizes": [SIZE, {**SIZE, "num_nodes": 0}]}, "num_nodes is 0; it must be from 1"),
        ({"sizes": [{**SIZE, "num_nodes": -2}]}, "num_nodes is -2; it must be from 1"),
        ({"sizes": [{**SIZE, "num_nodes": 1.5}]}, "num_nodes must be a whole number, not 1.5"),
        ({"sizes": [{**SIZE, "nproc_per_node": 0}]}, "nproc_per_node is 0; it must be from 1"),
        ({"sizes": [{**SIZE, "gpus_per_node": -1}]}, "gpus_per_node is -1; it must be from 0"),
        (
            {"sizes": [{**SIZE, "nproc_per_node": 4, "gpus_per_node": 2}]},
            "nproc_per_node is '4', and a pod has 2",
        ),
        ({"sizes": [{**SIZE, "batch_size": 0}]}, "hyperparameters['batch-size'] is 0; it must be"),
        ({"sizes": [{**SIZE, "batch_size": 1.5}]}, "['batch-size'] must be a whole number"),
        ({"epochs": 0}, "hyperparameters['epochs'] is 0; it must be from 1"),
    ],
)
def test_sizes_of_a_sweep_that_cannot_work_are_named(arguments: Any, words: str) -> None:
    with pytest.raises(click.ClickException) as caught:
        sweep(**arguments)
    assert words in caught.value.message


def test_a_size_that_is_there_twice_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    sweep(sizes=[SIZE, {**SIZE, "num_nodes": 2}])
    assert capsys.readouterr().err == ""
    sweep(sizes=[SIZE, SIZE])
    assert "Warning: The list 'sizes' has the item {'num_nodes': 1" in capsys.readouterr().err


def test_a_loop_that_does_not_run_or_need_not_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    package = find.find_one(str(tmp_path / "mine.py"))
    checks.check(package)
    checks.check(package, {"items": [{"nodes": 2, "name": "x"}]})
    checks.check(package, {"items": [1], "run": False})
    with pytest.raises(click.ClickException, match="has the item 1 without 'nodes'"):
        checks.check(package, {"items": [1]})
