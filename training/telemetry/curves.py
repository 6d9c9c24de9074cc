"""The curves of a job over all its restarts, and the line of a report. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import Folder

Curves = dict[str, list[tuple[int, float]]]
"""Points of step and value, by the name of what was measured."""

METRICS_FILE = "metrics.json"
BOARD_FOLDER = "tensorboard"
# Of a curve: each checkpoint has all curves, and would take longer and longer to write.
_MOST_POINTS = 10_000


@dataclass
class History:
    """The curves of a job since its first step, over all restarts."""

    curves: Curves = field(default_factory=dict)  # the points of each curve, by rising step

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds finite values to their curves, and discards their points from this step on.

        A curve that gets too long loses every other point.
        """
        for name, value in values.items():
            if math.isfinite(value):
                points = self.curves.setdefault(name, [])
                while points and points[-1][0] >= step:
                    points.pop()
                points.append((step, value))
                if len(points) > _MOST_POINTS:
                    del points[1:-1:2]

    def keep_until(self, step: int) -> None:
        """Discards the points after a step, which a job that resumes there measures again."""
        kept = {name: [p for p in points if p[0] <= step] for name, points in self.curves.items()}
        self.curves = {name: points for name, points in kept.items() if points}


def line(values: Mapping[str, float | int]) -> str:
    """One report as `name=value` pairs, as Katib's collector and a person read them."""
    return " ".join(
        f"{name}={value}" if isinstance(value, int) else f"{name}={value:.6g}"
        for name, value in values.items()
    )


def write_metrics(folder: Folder, summary: Mapping[str, Any], history: History) -> None:
    """Writes `metrics.json`: finite numbers, and the curves. Raises StorageError."""
    text = json.dumps({**summary, "curves": history.curves}, indent=1, allow_nan=False)
    job_folder.write(folder, METRICS_FILE, text.encode())


def read_curves(folder: Folder) -> Curves:
    """The curves in `metrics.json`; none where it is missing or damaged. Raises StorageError."""
    try:
        curves = json.loads(folder.read(METRICS_FILE))["curves"]
        return {
            str(name): [(int(step), float(value)) for step, value in points]
            for name, points in curves.items()
        }
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
