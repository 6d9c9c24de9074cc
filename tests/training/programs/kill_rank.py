"""A rank that records its samples and where it resumes. Run by `runpy`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.image import loop

given = globals()
# Unbuffered, so that a note that was made outlives a kill.
notes = Path(given["notes"]).open("ab", buffering=0)  # noqa: SIM115
resume, train_step = Checkpoints.resume, loop.train_step


def noted_resume(self: Checkpoints) -> bool:
    resumed = resume(self)
    notes.write(f"resumed {self._state.progress.step}\n".encode())
    return resumed


def noted_step(job: loop.Job, batch: Any, samples: Any) -> Any:
    # Before it is taken: another rank may save a step that this one dies of.
    progress, seen = job.state.progress, batch.indices[: batch.count].tolist()
    words = [progress.step + 1, progress.epoch, *seen]
    notes.write((" ".join(map(str, words)) + "\n").encode())
    return train_step(job, batch, samples)


Checkpoints.resume = noted_resume  # type: ignore[method-assign]
loop.train_step = noted_step
runpy.run_path(str(Path(__file__).with_name("rank_process.py")), given["names"], "__main__")
