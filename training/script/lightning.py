"""A callback for Lightning's Trainer: it reports what a module logs, and keeps its checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

try:
    from lightning.pytorch.callbacks import Checkpoint
except ImportError:
    from pytorch_lightning.callbacks import Checkpoint

from kfp_pytorch.training import script
from kfp_pytorch.training.errors import ConfigError

_NAME = "lightning.ckpt"


class ReportCallback(Checkpoint):  # type: ignore[misc] # it is not looked into
    """After each epoch reports the numbers that were logged, and writes a checkpoint.

    It takes the place of Lightning's own ModelCheckpoint, which writes to the working folder.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """See `lightning.pytorch.Callback`. Raises ConfigError: there would be several models."""
        if trainer.world_size != script.world_size():
            raise ConfigError(
                f"Lightning's Trainer has {trainer.world_size} processes and the job "
                f"{script.world_size()}, so each would train a model of its own. Start the script "
                'with torchrun, and give the Trainer devices=int(os.environ["LOCAL_WORLD_SIZE"]) '
                'and num_nodes=int(os.environ["GROUP_WORLD_SIZE"])'
            )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """See `lightning.pytorch.Callback`; validation has been done by then."""
        script.report(trainer.callback_metrics, step=trainer.global_step)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, _NAME)
            # On all ranks, which have their parts of the state.
            trainer.save_checkpoint(path, weights_only=False)
            script.save_checkpoint_files(path, step=trainer.global_step)


def latest_checkpoint() -> str | None:
    """What `trainer.fit(…, ckpt_path=…)` takes to go on from the newest checkpoint.

    Returns:
        The path of a file, or None at a job's first start.

    Raises:
        CheckpointError: There are some, and none can be used.
        StorageError: The job's folder cannot be read.
    """
    found = script.latest_checkpoint()
    return f"{found.files()}/{_NAME}" if found else None
