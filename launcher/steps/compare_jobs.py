"""The step `compare_jobs`: how jobs of different sizes scale, as a table and charts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import declare, parse
from kfp_pytorch.launcher.outputs.artifacts import finite_metrics
from kfp_pytorch.launcher.outputs.scaling import By, Scaled, as_page, as_table, compare
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log
from kfp_pytorch.launcher.text import some


@dataclass(frozen=True)
class CompareInputs:
    """The checked inputs of `compare_jobs`, its artifacts not counted."""

    size: str = declare(readers.text, "processes")
    throughput: str = declare(readers.text, "samples_per_second")
    group_by: tuple[str, ...] = declare(readers.strings, [])


def run(
    models: Sequence[Artifact], table: Artifact, plot: Artifact, metrics: Artifact, **inputs: Any
) -> float:
    """Compare jobs by the metadata of their Models.

    Returns the scaling efficiency of the largest job; 0 where it is not known. Raises InputError:
    no model says what its size is.
    """
    given = parse_inputs(**inputs)
    by = By(given.size, given.throughput, given.group_by)
    every = [model.metadata or {} for model in models]
    rows = compare(every, by)
    sized = [row for row in rows if row.trained.size is not None]
    if not sized:
        raise InputError(_no_size(given.size, sorted({name for each in every for name in each})))
    write(table, as_table(rows, by))
    write(plot, as_page(rows, by))
    figures = _figures(sized)
    metrics.metadata.update(figures)
    # Without a file the KFP UI shows an error in the place of the artifact's content.
    write(metrics, json.dumps(figures, indent=2))
    for row in sized:
        log(_line(row, given))
    return figures.get("scaling_efficiency", 0.0)


def parse_inputs(**inputs: Any) -> CompareInputs:
    """Check the inputs of `compare_jobs`, the models not counted. Raises InputError."""
    given = parse(CompareInputs, "compare_jobs", inputs)
    if given.size in given.group_by:
        raise InputError(
            f"group_by has {given.size!r}, which is the size: then each job is compared with "
            "itself. Take it out of group_by, or set size to another."
        )
    return given


def _line(row: Scaled, given: CompareInputs) -> str:
    said = [f"{given.size} {row.trained.size:g}"]
    if row.throughput is not None:
        said.append(f"{given.throughput} {row.throughput:.4g}")
    if row.efficiency is not None:
        said.append(f"efficiency {row.efficiency:.1%}")
    return f"{row.trained.job}: {', '.join(said)}"


def _no_size(size: str, there: Sequence[str]) -> str:
    return (
        f"size is {size!r}, of which no model says a number. Set size to nodes, processes or a "
        "hyperparameter that is a number. The models' metadata has: "
        f"{some(there, 30) or 'nothing'}."
    )


def _figures(rows: Sequence[Scaled]) -> dict[str, float]:
    """The figures of the largest job, and the highest throughput."""
    last = max(rows, key=lambda row: (row.trained.size or 0.0, row.throughput or 0.0))
    rates = [row.throughput for row in rows if row.throughput is not None]
    known = {
        "speedup": last.speedup,
        "scaling_efficiency": last.efficiency,
        "highest_throughput": max(rates, default=None),
        "jobs": float(len(rows)),
    }
    return finite_metrics({name: value for name, value in known.items() if value is not None})
