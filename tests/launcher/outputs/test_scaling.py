"""Jobs of different sizes beside each other."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from kfp_pytorch.launcher.outputs.scaling import By, as_page, as_table, compare

PROCESSES = By("processes", "samples_per_second")


def model(job: str, processes: int, rate: float, batch: int = 64, **more: Any) -> dict[str, Any]:
    known = {"job": job, "nodes": 1, "processes": processes, "seconds": 30.0}
    return {
        **known,
        "hyperparameter_batch-size": str(batch),
        "hyperparameter_lr": "0.1",
        "metric_samples_per_second": rate,
        "metric_accuracy": 0.9,
        **more,
    }


FOUR, ONE, TWO = model("c", 4, 300.0), model("a", 1, 100.0), model("b", 2, 180.0)


def efficiencies(rows: Any) -> dict[str, float | None]:
    return {row.trained.job: row.efficiency for row in rows}


def test_each_job_is_compared_with_the_smallest_whatever_their_order() -> None:
    rows = compare([FOUR, ONE, TWO], PROCESSES)
    assert [row.trained.job for row in rows] == ["a", "b", "c"]
    assert [row.speedup for row in rows] == [1.0, 1.8, 3.0]
    assert efficiencies(rows) == {"a": 1.0, "b": 0.9, "c": 0.75}


def test_of_several_smallest_jobs_the_fastest_counts() -> None:
    rows = compare([model("slow", 1, 50.0), ONE, TWO], PROCESSES)
    assert efficiencies(rows) == {"a": 1.0, "slow": 0.5, "b": 0.9}


def test_jobs_are_compared_within_their_group() -> None:
    wide = [model("d", 1, 200.0, 128), model("e", 2, 300.0, 128)]
    rows = compare([*wide, ONE, TWO], By("processes", "samples_per_second", ("batch-size",)))
    # 64 comes before 128, though not by its text.
    assert efficiencies(rows) == {"a": 1.0, "b": 0.9, "d": 1.0, "e": 0.75}
    assert [row.trained.group for row in rows] == [("64",), ("64",), ("128",), ("128",)]


def test_a_hyperparameter_is_a_size_too() -> None:
    rows = compare([model("b", 1, 150.0, 128), model("a", 1, 100.0, 32)], By("batch-size", "x"))
    assert [row.trained.size for row in rows] == [32.0, 128.0]
    by = By("batch-size", "samples_per_second")
    rows = compare([model("b", 1, 150.0, 128), model("a", 1, 100.0, 32)], by)
    assert efficiencies(rows) == {"a": 1.0, "b": 0.375}


def test_the_table_has_what_differs_and_every_metric() -> None:
    rows = compare([ONE, model("b|x", 2, 180.0, 32, metric_loss=0.5)], PROCESSES)
    head, _, first, second = as_table(rows, PROCESSES).splitlines()[2:6]
    assert head == (
        r"| job | processes | batch-size | samples\_per\_second | speedup | efficiency "
        "| trained for | accuracy | loss |"
    )
    assert first == "| a | 1 | 64 | 100 | 1 | 100.0% | 30 s | 0.9 | – |"
    assert second == r"| b\|x | 2 | 32 | 180 | 1.8 | 90.0% | 30 s | 0.9 | 0.5 |"


def test_the_page_has_a_chart_of_each_metric_and_the_line_to_compare_with() -> None:
    page = as_page(compare([ONE, TWO, FOUR], PROCESSES), PROCESSES)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert captions == ["samples_per_second", "scaling efficiency", "accuracy"]
    assert "<b>400</b> at processes 4" in page, "in proportion to the size"
    assert "<b>0.75</b> at processes 4" in page
    assert "<script" not in page
    assert "http" not in page


def test_the_line_to_compare_with_is_left_out_where_groups_have_lines_of_their_own() -> None:
    by = By("processes", "samples_per_second", ("batch-size",))
    models = [ONE, TWO, model("d", 1, 200.0, 128), model("e", 2, 300.0, 128)]
    page = as_page(compare(models, by), by)
    assert "in proportion" not in page
    assert ">64 <b>180</b>" in re.sub(r"<span.*?</span>", ">", page).replace("<li>", "")


def without(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


@pytest.mark.parametrize(
    "odd",
    [
        without(TWO, "metric_samples_per_second"),
        TWO | {"metric_samples_per_second": math.nan},
        without(TWO, "processes"),
        TWO | {"processes": 0},
        TWO | {"processes": "many", "job": "b"},
        {"job": "b"},
    ],
)
def test_what_a_model_does_not_say_is_left_out_and_the_rest_is_shown(odd: Any) -> None:
    rows = compare([odd, ONE, FOUR], PROCESSES)
    assert efficiencies(rows) == {"a": 1.0, "b": None, "c": 0.75}
    assert "| b |" in as_table(rows, PROCESSES)
    assert "nan" not in as_page(rows, PROCESSES)


def test_markup_in_names_is_text() -> None:
    by = By("<b>", "<i>")
    rows = compare([{"job": "<script>", "<b>": 1, "metric_<i>": 1.0}], by)
    shown = as_table(rows, by)
    assert not any(f"|{markup}" in shown.replace(" ", "") for markup in ("<script>", "<b>", "<i>"))
    assert "<i>" not in as_page(rows, by).split("</style>")[1]
