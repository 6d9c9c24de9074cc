"""What a job tells of itself while it runs: rank 0 to stdout, TensorBoard and `metrics.json`."""

from __future__ import annotations

import json
import logging
from typing import Any

from torch import Tensor

from kfp_pytorch.training import storage
from kfp_pytorch.training.distributed import World
from kfp_pytorch.training.errors import StorageError
from kfp_pytorch.training.metrics import History, line
from kfp_pytorch.training.storage import Folder

LOG = logging.getLogger("kfp_pytorch.training")
METRICS_FILE = "metrics.json"


class Telemetry:
    """Where reports go. On all ranks but rank 0 they go nowhere.

    Attributes:
        history: The curves since the job's first step; the same object is kept in checkpoints.
    """

    def __init__(
        self, world: World, folder: Folder, history: History, resumed_step: int | None
    ) -> None:
        self.history = history
        self._folder = folder
        self._board = None
        if world.is_main:
            # The other ranks need not import it.
            from kfp_pytorch.training.tensorboard import TensorBoardWriter

            self._board = TensorBoardWriter(folder, resumed_step)

    def report(self, epoch: int, step: int, values: dict[str, float]) -> None:
        """Reports values that were measured after a step, as points of their curves."""
        self.history.add(step, values)
        if self._board is not None:
            print(line({"epoch": epoch, "step": step, **values}), flush=True)
            self._board.scalars(step, values)

    def note(self, name: str, values: dict[str, Any]) -> None:
        """Says once what does not change, such as the arguments, as a table."""
        if self._board is not None:
            numbers = {k: v for k, v in values.items() if type(v) in (int, float)}
            print(line(numbers), flush=True)
            rows = "\n".join(f"| {key} | `{value}` |" for key, value in values.items())
            self._board.text(name, f"| name | value |\n| --- | --- |\n{rows}")

    def images(self, name: str, step: int, images: Tensor, limits: tuple[float, float]) -> None:
        """Shows a batch of images."""
        if self._board is not None:
            self._board.images(name, step, images, limits)

    def flush(self, **about: Any) -> None:
        """Makes reports readable to others, and writes `metrics.json`.

        Args:
            **about: What `metrics.json` says beside the curves.

        Raises:
            StorageError: If the job's folder cannot be written to.
        """
        if self._board is not None:
            self._board.flush()
            content = {**about, "curves": self.history.curves}
            text = json.dumps(content, indent=1, allow_nan=False)
            storage.write(self._folder, METRICS_FILE, text.encode())

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        """Flushes and closes; whatever ends the job, what was reported stays."""
        if self._board is None:
            return
        try:
            self._board.close()
        except StorageError as error:
            if kind is None:
                raise
            # What ended the job is what has to be told.
            LOG.warning("the last reports are lost: %s", error)
