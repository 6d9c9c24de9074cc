"""A callback for Transformers' Trainer: it reports what is logged, and keeps its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback

from kfp_pytorch.training import script
from kfp_pytorch.training.errors import ConfigError

# What is logged of the run and not of the model.
_OTHERS = ("epoch", "_runtime", "_per_second", "_flos")


class ReportCallback(TrainerCallback):  # type: ignore[misc] # it is not looked into
    """Reports the numbers that the Trainer logs, and keeps each checkpoint that it saves.

    How often it does, `logging_strategy` and `save_strategy` of its TrainingArguments say.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """See `transformers.TrainerCallback`. Raises ConfigError: there would be several models."""
        if args.world_size != script.world_size():
            raise ConfigError(
                f"Transformers' Trainer has {args.world_size} processes and the job "
                f"{script.world_size()}, so each would train a model of its own. Start the script "
                "with torchrun; where the processes have no GPUs, give TrainingArguments "
                "use_cpu=True or set the variable ACCELERATE_USE_CPU to true"
            )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """See `transformers.TrainerCallback`."""
        numbers = {
            name: value
            for name, value in (logs or {}).items()
            if isinstance(value, (int, float)) and not name.endswith(_OTHERS)
        }
        script.report(numbers, step=state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """See `transformers.TrainerCallback`; it is called on all ranks."""
        if dist.is_available() and dist.is_initialized():
            # Each has written a file of its own.
            dist.barrier()
        path = Path(args.output_dir, f"checkpoint-{state.global_step}")
        script.save_checkpoint_files(path, step=state.global_step)


def latest_checkpoint() -> str | None:
    """What `trainer.train(resume_from_checkpoint=…)` takes to go on from the newest checkpoint.

    Returns:
        The path of a folder, or None at a job's first start.

    Raises:
        CheckpointError: There are some, and none can be used.
        StorageError: The job's folder cannot be read.
    """
    found = script.latest_checkpoint()
    return found.files() if found else None
