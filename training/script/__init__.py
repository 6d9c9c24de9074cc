"""What a training script of your own imports to report, resume and export.

It needs neither kfp nor kubernetes; torch and all else that takes long to import is imported by the
function that needs it. Each function may be called on rank 0 or on all ranks, in a job or outside
of one: then it writes into `./kfp-pytorch-output`, or the folder that KFP_PYTORCH_OUTPUT names.

    from kfp_pytorch.training import script

    state, first = {"model": model, "optimizer": optimizer}, 0
    if checkpoint := script.latest_checkpoint():
        checkpoint.load(into=state)
        first = checkpoint.step
    for epoch in range(first, epochs):
        ...
        script.report({"loss": loss, "accuracy": accuracy}, step=epoch + 1)
        script.save_checkpoint(state, step=epoch + 1)
    script.export(model, inputs)
"""

from __future__ import annotations

from kfp_pytorch.training.script import failures
from kfp_pytorch.training.script.checkpointing import (
    Checkpoint,
    latest_checkpoint,
    save_checkpoint,
)
from kfp_pytorch.training.script.exporting import export, export_files
from kfp_pytorch.training.script.file_checkpoints import save_checkpoint_files
from kfp_pytorch.training.script.place import dataset, folder, local_rank, rank, world_size
from kfp_pytorch.training.script.result import finish, report

__all__ = [
    "Checkpoint",
    "dataset",
    "export",
    "export_files",
    "finish",
    "folder",
    "latest_checkpoint",
    "local_rank",
    "rank",
    "report",
    "save_checkpoint",
    "save_checkpoint_files",
    "world_size",
]

failures.watch()
