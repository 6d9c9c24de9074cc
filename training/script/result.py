"""The reports and the result of a script."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.training import export
from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.entry.rank_records import EXIT_RETRYABLE, exit_now
from kfp_pytorch.training.entry.termination_message import success_message
from kfp_pytorch.training.errors import TrainingError, UnavailableError
from kfp_pytorch.training.script import failures, place
from kfp_pytorch.training.script.reports import numbers, reports

NO_EXPORT = "the script exported no model; script.export(model, example_inputs) does"


@dataclass
class _Result:
    exported: dict[str, Any] = field(default_factory=dict)  # see `export.publish`
    process: int = 0  # which process leaves it at its end; 0: none yet
    is_left: bool = False  # whether it was left, and nothing came after
    has_own: bool = False  # whether anything in it is of this process


_result = _Result()


def report(metrics: Mapping[str, Any], step: int | None = None) -> None:
    """Reports what was measured: the last values are the job's final metrics.

    Rank 0 prints one line of `name=value` pairs, adds to the curves in `metrics.json`, writes to
    TensorBoard where tensorboard is installed, and to MLflow where MLFLOW_TRACKING_URI is set.
    After a restart the curves continue at this step, or after that of `latest_checkpoint`.

    Args:
        metrics: One number by each name; a tensor or an array of one element is a number.
        step: How many steps are done; by default one more than at the last report, or than those of
            `latest_checkpoint`. A curve's points of this step and later ones are replaced.

    Raises:
        TypeError: A value is no number, or the step no whole number.
        ValueError: The step is below 0.
        StorageError: The job's folder cannot be written to.
    """
    if place.rank() == 0:
        values = numbers(metrics)
        after = None if step is None else place.whole_step(step)
        place.check_no_loader_worker("report")
        leave_at_exit(has_own=True)
        reports().add(values, after)


def finish(metrics: Mapping[str, Any] | None = None) -> None:
    """Leaves the job's result: final metrics, curves, the newest checkpoint, and the export.

    Where a script does not call it, it is done when the process ends without an exception.

    Args:
        metrics: Final metrics, beside the last value of each that was reported.

    Raises:
        TypeError: A value is no number.
        ExportError: The export is not there any more, or was changed.
        StorageError: The job's folder cannot be written to.
    """
    if place.rank() == 0:
        _result.has_own |= bool(metrics)
        _leave(numbers(metrics or {}))


def keep_export(exported: dict[str, Any]) -> None:
    """Makes an export a part of the result; see `export.publish`."""
    _result.exported = exported
    leave_at_exit(has_own=True)
    reports().write()
    leave_so_far()


def leave_at_exit(*, has_own: bool = False) -> None:
    """Lets this process leave the result when it ends; called for all that belongs to it.

    Without anything of its own it leaves one only where no other process has: it may have started
    the ranks, and only looked for a checkpoint.
    """
    _result.is_left = False
    _result.has_own |= has_own
    if _result.process != os.getpid():
        _result.process = os.getpid()
        failures.at_exit(_at_exit)


def _leave(metrics: dict[str, float]) -> None:
    _result.is_left = True
    if not _result.has_own and failures.result_left():
        return
    told = reports()
    # Those that are given here come first: there is always room for them.
    told.last = {**metrics, **told.last, **metrics}
    if exported := _exported():
        export.verify(told.folder, exported["export"])
    told.close(None)
    told.write()
    failures.unless_one_failed(_message)


def leave_so_far() -> None:
    """Leaves the result as it is now, for a script that ends without its end, as by os._exit."""
    failures.unless_one_failed(_message)


def _message() -> str:
    told = reports()
    result = {
        **told.summary(),
        **(_exported() or {"no_export": NO_EXPORT}),
        "checkpoint": catalog.newest_step(told.folder),
        "curves": told.history.curves,
    }
    return success_message(result)


def _exported() -> dict[str, Any]:
    """The export of this process, or of one of this container before it; empty without one."""
    left = failures.result_left()
    if left.get("export") and not _result.exported:
        return {"export": left["export"], "samples": left.get("samples", [])}
    return _result.exported


def _at_exit() -> None:
    # A fork has the functions of the process that it was made from, and no part in the result.
    if _result.process != os.getpid():
        return
    _result.process = 0
    if _result.is_left:
        return
    try:
        if failed := failures.ended_by():
            with contextlib.suppress(TrainingError):
                reports().close(failed)
                reports().write()
        else:
            _leave({})
    except Exception as error:
        # An exception would not change the exit code here.
        print(f"error: {error}", file=sys.stderr)
        failures.leave(error)
        exit_now(EXIT_RETRYABLE if isinstance(error, UnavailableError) else 1)
