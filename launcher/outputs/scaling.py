"""Jobs of different sizes beside each other: their figures, how they scale, as table and charts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.outputs.charts import page, short
from kfp_pytorch.launcher.outputs.curves import figures
from kfp_pytorch.launcher.outputs.markdown import table, text
from kfp_pytorch.launcher.runtime.printing import duration, printable

_METRIC, _HYPERPARAMETER = "metric_", "hyperparameter_"
_NONE = "–"
_LINEAR = "in proportion to the size"


@dataclass(frozen=True)
class Trained:
    """One job, as its Model tells of it."""

    job: str
    group: tuple[str, ...]  # the values by which jobs are compared apart from each other
    size: float | None  # None where the Model does not say
    seconds: float | None
    metrics: Mapping[str, float]
    differences: Mapping[str, str]  # in what else the jobs differ, by name


@dataclass(frozen=True)
class Scaled:
    """A job beside the smallest one of its group."""

    trained: Trained
    throughput: float | None = None  # None where the job reported none
    speedup: float | None = None  # its throughput divided by that of the smallest job
    efficiency: float | None = None  # the speedup divided by the ratio of the sizes


@dataclass(frozen=True)
class By:
    """What jobs are compared by: names of metadata of a Model, or of hyperparameters."""

    size: str
    throughput: str  # a metric
    group: tuple[str, ...] = ()


def compare(models: Iterable[Mapping[str, Any]], by: By) -> list[Scaled]:
    """Compare each job with the smallest one of its group, from the metadata of their Models.

    Returns them by group and size.
    """
    jobs = _read(list(models), by)
    smallest: dict[tuple[str, ...], Trained] = {}
    for job in jobs:
        if job.size and job.metrics.get(by.throughput):
            smallest.setdefault(job.group, job)
    return [_scaled(job, smallest.get(job.group), by.throughput) for job in jobs]


def _read(models: Sequence[Mapping[str, Any]], by: By) -> list[Trained]:
    compared = {"nodes", "processes", *(name for each in models for name in _hyperparameters(each))}
    kept = [*by.group, *sorted(compared - {by.size, *by.group})]
    texts = {name: [_text(_value(each, name)) for each in models] for name in kept}
    shown = [name for name in kept if name in by.group or len(set(texts[name])) > 1]
    found = [
        Trained(
            job=str(each.get("job") or f"model {i + 1}"),
            group=tuple(texts[name][i] for name in by.group),
            size=_finite(_value(each, by.size)),
            seconds=_finite(each.get("seconds")),
            metrics=_metrics(each),
            differences={name: texts[name][i] for name in shown},
        )
        for i, each in enumerate(models)
    ]
    return sorted(found, key=lambda job: _place(job, by.throughput))


def _scaled(job: Trained, smallest: Trained | None, throughput: str) -> Scaled:
    rate = job.metrics.get(throughput)
    if smallest is None or not smallest.size or not job.size or rate is None:
        return Scaled(job, rate)
    speedup = rate / smallest.metrics[throughput]
    return Scaled(job, rate, speedup, speedup * smallest.size / job.size)


def as_table(rows: Sequence[Scaled], by: By) -> str:
    """Return all figures as a Markdown page."""
    metrics = [name for name in _metric_names(rows) if name != by.throughput]
    others = [*rows[0].trained.differences]
    head = ["job", by.size, *others, by.throughput, "speedup", "efficiency", "trained for"]
    lines = [
        [
            row.trained.job,
            _number(row.trained.size),
            *row.trained.differences.values(),
            _number(row.throughput),
            _number(row.speedup),
            _NONE if row.efficiency is None else f"{row.efficiency:.1%}",
            _NONE if row.trained.seconds is None else duration(row.trained.seconds),
            *(_number(row.trained.metrics.get(name)) for name in metrics),
        ]
        for row in rows
    ]
    shown = table([*map(text, [*head, *metrics])], lines)
    return printable(f"# Jobs by {text(by.size)}\n\n{shown}\n\n{_explained(by)}\n")


def as_page(rows: Sequence[Scaled], by: By) -> str:
    """Return throughput, efficiency and every other metric against the size, as an HTML page."""
    charts = {
        by.throughput: _lines(rows, lambda row: row.throughput) | _in_proportion(rows),
        "scaling efficiency": _lines(rows, lambda row: row.efficiency),
    }
    for name in _metric_names(rows):
        if name != by.throughput:
            charts[name] = _lines(rows, functools.partial(_metric, name))
    drawn = figures({name: lines for name, lines in charts.items() if lines}, by.size)
    return printable(page(f"Jobs by {by.size}", drawn or "<p>The jobs reported no metric.</p>"))


def _lines(
    rows: Sequence[Scaled], value_of: Callable[[Scaled], float | None]
) -> dict[str, list[tuple[float, float]]]:
    """The points of each group that has some, by what it is shown as."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        value, size = value_of(row), row.trained.size
        if size is not None and value is not None:
            found.setdefault(", ".join(row.trained.group) or "jobs", []).append((size, value))
    return found


def _in_proportion(rows: Sequence[Scaled]) -> dict[str, list[tuple[float, float]]]:
    """The throughput at an efficiency of 1; nothing where there are several groups."""
    points = [
        (row.trained.size, row.throughput / row.efficiency)
        for row in rows
        if row.trained.size and row.throughput and row.efficiency
    ]
    several = len({row.trained.group for row in rows}) > 1
    return {} if several or len(points) < 2 else {_LINEAR: points}


def _explained(by: By) -> str:
    alike = f" among those with the same {' and '.join(by.group)}" if by.group else ""
    return text(
        f"Speedup: {by.throughput}, divided by that of the job whose {by.size} is the smallest"
        f"{alike}. "
        f"Efficiency: the speedup, divided by the ratio of {by.size} of both jobs."
    )


def _hyperparameters(model: Mapping[str, Any]) -> list[str]:
    names = [name for name in model if name.startswith(_HYPERPARAMETER)]
    return [name.removeprefix(_HYPERPARAMETER) for name in names]


def _value(model: Mapping[str, Any], name: str) -> Any:
    return model.get(name, model.get(f"{_HYPERPARAMETER}{name}"))


def _metrics(model: Mapping[str, Any]) -> dict[str, float]:
    found = {
        name.removeprefix(_METRIC): _finite(value)
        for name, value in model.items()
        if name.startswith(_METRIC)
    }
    return {name: value for name, value in found.items() if value is not None}


def _metric(name: str, row: Scaled) -> float | None:
    return row.trained.metrics.get(name)


def _metric_names(rows: Sequence[Scaled]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.trained.metrics))


def _place(job: Trained, throughput: str) -> tuple[Any, ...]:
    """By group, size and throughput: of several jobs of a size the fastest comes first."""
    numbers = [math.inf if (number := _finite(value)) is None else number for value in job.group]
    size = math.inf if job.size is None else job.size
    return numbers, job.group, size, -job.metrics.get(throughput, 0.0), job.job


def _text(value: Any) -> str:
    if value is None:
        return _NONE
    return short(value) if isinstance(value, float) and math.isfinite(value) else str(value)


def _number(value: float | None) -> str:
    return _NONE if value is None else short(value)


def _finite(value: Any) -> float | None:
    """A number, or the text of one, as hyperparameters are."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
