"""Where a running job reports what is measured.

| from | what | to |
| --- | --- | --- |
| rank 0 | reports | stdout, one line each |
| rank 0 | reports with their details, images, tables | TensorBoard |
| rank 0 | curves since the job's first step | `metrics.json` |
| rank 0 | reports with their details | MLflow, where MLFLOW_TRACKING_URI is set |
| the first rank of each node | the last report, the step, the checkpoint's age | Prometheus |

All ranks call all methods; on a rank that has nowhere to report to they do nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.entry.termination_message import printable
from kfp_pytorch.training.errors import StorageError
from kfp_pytorch.training.parallel.process_group import World, on_main
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry.curves import BOARD_FOLDER, History, line, write_metrics
from kfp_pytorch.training.telemetry.metrics import Progress

if TYPE_CHECKING:
    from kfp_pytorch.training.telemetry.mlflow_tracking import Tracker
    from kfp_pytorch.training.telemetry.prometheus import Exporter
    from kfp_pytorch.training.telemetry.tensorboard_events import TensorBoardWriter

LOG = logging.getLogger("kfp_pytorch.training")
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Config)}


class Telemetry:
    """Where reports go; see the module. `history`: the curves, which checkpoints keep, too."""

    def __init__(
        self, config: Config, world: World, folder: Folder, history: History, progress: Progress
    ) -> None:
        """Opens all outputs on all ranks. Prometheus reads `progress` at each request."""
        self.history = history
        self._folder = folder
        self._board: TensorBoardWriter | None = None
        self._tracker: Tracker | None = None
        self._exporter: Exporter | None = None
        starts = on_main(world, lambda: len(folder.names(BOARD_FOLDER)))
        # A rank imports only what it needs.
        if world.is_main:
            from kfp_pytorch.training.telemetry.mlflow_tracking import open_tracker
            from kfp_pytorch.training.telemetry.tensorboard_events import TensorBoardWriter

            self._board = TensorBoardWriter(folder, progress.step)
            self._tracker = open_tracker(folder, config.resume == "never" and not progress.step)
        if config.metrics_port and world.local_rank == 0:
            from kfp_pytorch.training.telemetry.prometheus import Exporter

            self._exporter = Exporter(
                config.metrics_port, lambda: (progress.epoch, progress.step), starts
            )

    def report(
        self,
        epoch: int,
        step: int,
        values: Mapping[str, float],
        details: Mapping[str, float] | None = None,
    ) -> None:
        """Reports values after a step; `details` are too many for the log and checkpoints."""
        self.history.add(step, values)
        every = {**values, **(details or {})}
        if self._exporter is not None:
            self._exporter.report(every)
        if self._board is not None:
            print(line({"epoch": epoch, "step": step, **values}), flush=True)
            self._board.scalars(step, every)
        if self._tracker is not None:
            self._tracker.metrics(step, every)

    def describe(self, name: str, values: Mapping[str, Any], results: Sequence[str] = ()) -> None:
        """Reports once what does not change; TensorBoard compares jobs by the curves `results`."""
        values = {k: printable(v) if isinstance(v, str) else v for k, v in values.items()}
        if self._board is not None:
            numbers = {k: v for k, v in values.items() if type(v) in (int, float)}
            # Defaults are left out of the log; TensorBoard has all.
            print(line({k: v for k, v in numbers.items() if _DEFAULTS.get(k) != v}), flush=True)
            rows = "\n".join(f"| {key} | `{value}` |" for key, value in values.items())
            self._board.text(name, f"| name | value |\n| --- | --- |\n{rows}")
            self._board.hyperparameters(printable(self._folder.uri), values, results)
        if self._tracker is not None:
            self._tracker.parameters(values)

    def images(self, name: str, step: int, images: Tensor, limits: tuple[float, float]) -> None:
        """Shows a batch of images."""
        if self._board is not None:
            self._board.images(name, step, images, limits)

    def confusion(self, step: int, counts: Tensor | None, classes: Sequence[str]) -> None:
        """Shows the confusion matrix of the held-out samples."""
        if self._board is not None and counts is not None:
            from kfp_pytorch.training.telemetry.confusion_matrix import confusion_matrix

            self._board.picture("confusion", step, confusion_matrix(counts, classes))

    def flush_events(self) -> None:
        """Makes reports readable to others, before a checkpoint from which a new start resumes.

        Raises StorageError: if the job's folder cannot be written to.
        """
        if self._board is not None:
            self._board.flush()

    def checkpoint_saved(self) -> None:
        """A checkpoint is complete."""
        if self._exporter is not None:
            self._exporter.checkpoint_saved()

    def flush(self, **summary: Any) -> None:
        """Makes reports readable to others, and writes `metrics.json` with curves and summary."""
        if self._board is not None:
            self._board.flush()
            write_metrics(self._folder, summary, self.history)

    def finished(self) -> None:
        """Training is done, and the last reports are its result."""
        if self._board is not None:
            self._board.end()
        if self._tracker is not None:
            self._tracker.finished()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        """Flushes and closes; reports are kept however the job ends."""
        if self._tracker is not None:
            self._tracker.close(kind)
        if self._board is None:
            return
        try:
            self._board.close()
        except StorageError as error:
            if kind is None:
                raise
            # The error that ended the job is the one to raise.
            LOG.warning("the last reports are lost: %s", error)
