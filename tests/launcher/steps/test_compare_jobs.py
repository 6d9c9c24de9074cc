"""The step that compares jobs of different sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.steps import compare_jobs


def models(*sizes: tuple[int, float]) -> list[dsl.Model]:
    return [
        dsl.Model(
            uri="s3://b/m",
            metadata={"job": f"j-{n}", "processes": n, "metric_samples_per_second": rate},
        )
        for n, rate in sizes
    ]


class Step:
    def __init__(self, folder: Path) -> None:
        self.outputs = {
            "table": dsl.Markdown(uri=str(folder / "table")),
            "plot": dsl.HTML(uri=str(folder / "plot")),
            "metrics": dsl.Metrics(uri=str(folder / "metrics")),
        }

    def run(self, given: list[dsl.Model], **inputs: Any) -> float:
        return compare_jobs.run(given, **self.outputs, **inputs)

    def content(self, name: str) -> str:
        return Path(self.outputs[name].path).read_text(encoding="utf-8")


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def test_the_largest_job_s_efficiency_is_an_output_and_a_metric(step: Step) -> None:
    assert step.run(models((4, 300.0), (1, 100.0), (2, 190.0))) == 0.75
    figures = {"speedup": 3.0, "scaling_efficiency": 0.75, "highest_throughput": 300.0, "jobs": 3.0}
    assert step.outputs["metrics"].metadata == figures
    assert json.loads(step.content("metrics")) == figures
    assert "| j-2 | 2 | 190 | 1.9 | 95.0% |" in step.content("table")
    assert step.content("plot").startswith("<!DOCTYPE html>")


def test_jobs_that_report_no_throughput_are_shown_all_the_same(step: Step) -> None:
    assert step.run(models((1, 1.0), (2, 2.0)), throughput="tokens_per_second") == 0.0
    assert step.outputs["metrics"].metadata == {"jobs": 2.0}
    assert "| j-2 | 2 | – | – | – |" in step.content("table")


def test_a_size_of_which_no_model_says_a_number_is_refused_with_what_there_is(step: Step) -> None:
    with pytest.raises(InputError, match="size is 'gpus', of which no model says") as raised:
        step.run(models((1, 1.0)), size="gpus")
    assert "metadata has: job, metric_samples_per_second and processes." in raised.value.message
    with pytest.raises(InputError, match="has: nothing"):
        step.run([])


def test_the_size_cannot_be_a_group_too() -> None:
    with pytest.raises(InputError, match=r"group_by has 'batch-size', which is the size"):
        compare_jobs.parse_inputs(size="batch-size", group_by=["batch-size"])
