"""Makes losses of one rank infinite, and prints its weights at the end. Run by `runpy`."""

from __future__ import annotations

import hashlib
import itertools
import os
from typing import Any

from kfp_pytorch.training.image import loop

SPOILED = {"1": (2, 5)}.get(os.environ["RANK"], ())
backward, finish, numbers = loop.backward, loop.finish, itertools.count(1)


def spoiled_backward(*arguments: Any) -> Any:
    loss = backward(*arguments)
    return loss * float("inf") if next(numbers) in SPOILED else loss


def printing_finish(job: loop.Job, evaluation: dict[str, float]) -> Any:
    content = b"".join(each.detach().numpy().tobytes() for each in job.state.model.parameters())
    print(f"weights={hashlib.sha256(content).hexdigest()}", flush=True)
    return finish(job, evaluation)


loop.backward, loop.finish = spoiled_backward, printing_finish
