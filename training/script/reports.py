"""What rank 0 of a script reports: as a line, to TensorBoard and MLflow, in `metrics.json`."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp_pytorch.training.entry.termination_message import printable
from kfp_pytorch.training.errors import StorageError
from kfp_pytorch.training.script import failures, place
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry.curves import (
    Curves,
    History,
    line,
    read_curves,
    write_metrics,
)

if TYPE_CHECKING:
    from kfp_pytorch.training.telemetry.mlflow_tracking import Tracker
    from kfp_pytorch.training.telemetry.tensorboard_events import TensorBoardWriter

# How often `metrics.json` is written where no checkpoint is.
_WRITE_SECONDS = 60.0
_MAKING = threading.Lock()


class Reports:
    """What this process has reported, and where it goes."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._found = read_curves(folder)
        self.history = History(self._found)
        # What a program before this one has left, in a container that runs several.
        before = failures.result_left()
        self._before: dict[str, float] = before.get("metrics", {})
        self.last: dict[str, float] = {}  # the last value of each name, finite or not
        self.step = _last_step(self._found) if before else 0
        # Else the curves are of an earlier start, which may have got further than this one.
        self._continues = bool(before)
        self._has_reported = self._open = self._went_back = False
        self._lock = threading.Lock()
        self._board: TensorBoardWriter | None = None
        self._tracker: Tracker | None = None
        self._written = time.monotonic()

    def resume(self, folder: Folder, step: int) -> None:
        """Continues the curves of a folder after a step; after 0, and not at it, from the start."""
        self.history = History(read_curves(folder))
        self.history.keep_until(step)
        self.step = step

    def add(self, values: Mapping[str, float], step: int | None) -> None:
        """Reports values after a step, or after the next one; any thread may call it."""
        with self._lock:
            self._add(values, step)

    def _add(self, values: Mapping[str, float], step: int | None) -> None:
        self._take_over()
        done, self.step = self.step, self.step + 1 if step is None else step
        if not (self._has_reported or self._continues):
            done = max(0, self.step - 1)
            self.history.keep_until(done if self.step else -1)
        self._has_reported = True
        if not self._open:
            self._begin(done)
        self._warn_of_discarded(values)
        self.history.add(self.step, values)
        self.last.update(values)
        if self._board is not None:
            self._board.scalars(self.step, dict(values))
        if self._tracker is not None:
            self._tracker.metrics(self.step, values)
        if time.monotonic() - self._written > _WRITE_SECONDS:
            try:
                self.write()
            except StorageError as error:
                # The next checkpoint needs the folder more than a report does.
                place.say(f"the newest reports are not in metrics.json yet: {error}")
        # Nobody reads a stdout that the script has closed.
        with contextlib.suppress(OSError, ValueError):
            print(line({"step": self.step, **values}), flush=True)

    def write(self) -> None:
        """Makes all reports readable to others. Raises StorageError."""
        self._written = time.monotonic()
        if self._board is not None:
            self._board.flush()
        self._take_over()
        write_metrics(self.folder, self.summary(), self.history)
        self._found = self.history.curves

    def summary(self) -> dict[str, Any]:
        """The final metrics so far, the others of them, the number of processes, the last step."""
        ends = {name: points[-1][1] for name, points in self.history.curves.items()}
        every = {**self.last, **self._before, **ends, **self.last}
        metrics = {name: value for name, value in every.items() if math.isfinite(value)}
        about = {"metrics": metrics, "world_size": place.world_size(), "step": self.step}
        odd = {name: str(value) for name, value in every.items() if name not in metrics}
        return {**about, "not_finite": odd} if odd else about

    def close(self, failed: type[BaseException] | None) -> None:
        """Ends what is open, after such a failure or none; a later report opens it again."""
        board, tracker = self._board, self._tracker
        self._board = self._tracker = None
        self._open = False
        if tracker is not None:
            if failed is None:
                tracker.finished()
            tracker.close(failed)
        if board is not None:
            if failed is None:
                board.end()
            board.close()

    def _take_over(self) -> None:
        """Goes on after what another process of this start has reported, such as a spawned one."""
        if not self._has_reported and (found := read_curves(self.folder)) != self._found:
            self.history, self.step, self._continues = History(found), _last_step(found), True

    def _warn_of_discarded(self, values: Mapping[str, float]) -> None:
        curves = {name: self.history.curves.get(name) for name in values}
        later = {name: points[-1][0] for name, points in curves.items() if points}
        name = max(later, key=lambda each: later[each], default="")
        if not self._went_back and name and later[name] > self.step:
            self._went_back = True
            place.say(
                f"{name} was reported after step {later[name]}, and now after {self.step}: its "
                "points from there on are discarded. Count steps over all of the training"
            )

    def _begin(self, done: int) -> None:
        from kfp_pytorch.training.telemetry.mlflow_tracking import open_tracker

        self._open = True
        self._board = _board(self.folder, done)
        self._tracker = open_tracker(self.folder, not self.history.curves)


def _last_step(curves: Curves) -> int:
    return max((points[-1][0] for points in curves.values()), default=0)


def reports() -> Reports:
    """Those of this process; rank 0 alone asks for them. Raises StorageError."""
    # Two threads that ask first would each get their own.
    with _MAKING:
        return _made()


@functools.cache
def _made() -> Reports:
    return Reports(place.job_folder())


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as plain numbers, by names without blanks, which would break a line of pairs.

    Raises TypeError: they have no names, or a value is no number.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics is {type(metrics).__name__} and must be a dictionary of numbers by name, "
            "such as {'loss': 0.1}"
        )
    return {
        "_".join(printable(str(name)).split()): _number(name, value)
        for name, value in metrics.items()
    }


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError("a text is no number")
        # Of a tensor that is a part of a graph, torch would warn of float.
        plain = value.item() if hasattr(value, "item") else value
        return plain if type(plain) is int and math.isfinite(plain) else float(plain)
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        shape = getattr(value, "shape", None)
        what = type(value).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")
        raise TypeError(
            f"the metric {name!r} is {what} and must be one number: leave it out, or report a "
            "number such as its mean"
        ) from error


def _board(folder: Folder, done: int) -> TensorBoardWriter | None:
    try:
        from kfp_pytorch.training.telemetry.tensorboard_events import TensorBoardWriter
    except ModuleNotFoundError:
        # Python's own words would be taken for the reason of a later failure.
        place.say(
            "nothing is written for TensorBoard, which the image lacks: pip install tensorboard"
        )
        return None
    # An older protobuf than tensorboard's files need raises TypeError.
    except (ImportError, TypeError) as error:
        place.say(f"nothing is written for TensorBoard ({error}): pip install tensorboard")
        return None
    return TensorBoardWriter(folder, done)
