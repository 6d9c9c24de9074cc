"""Where a script is: its rank, the job's folder, its data."""

from __future__ import annotations

import functools
import json
import operator
import os
import sys
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import DATASET_ENV, DATASETS_ENV, OUTPUT_ENV
from kfp_pytorch.training.entry.environment import remove_final_line_breaks
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.storage.job_folder import Folder, open_folder

OUTSIDE = "kfp-pytorch-output"
# The largest that TensorBoard takes.
_MOST_STEPS = 2**63 - 1
# Types of tensors whose parts several ranks have.
_SHARDED = {"DTensor", "ShardedTensor"}
# What torch.distributed said of this process: it is also known after the group is destroyed.
_joined: dict[str, int] = {}


def rank() -> int:
    """This process among all of the job, from 0.

    It is that of torch.distributed once its process group exists, and RANK before.
    """
    return _of_group("rank", "RANK", 0)


def world_size() -> int:
    """The number of processes of the job; see `rank`."""
    count = _of_group("world_size", "WORLD_SIZE", 1)
    if "world_size" in _joined or "LOCAL_RANK" in os.environ:
        return count
    # The operator counts those that torchrun would start, and nothing started them here.
    return max(1, count // max(1, _number("PET_NPROC_PER_NODE", 1)))


def local_rank() -> int:
    """This process among those of its node, from 0, as LOCAL_RANK says."""
    return _number("LOCAL_RANK", 0)


def folder() -> str:
    """The job's folder, a path or a URI such as `s3://…`; a path exists.

    Raises:
        StorageError: It cannot be used; the message says why and what to do.
    """
    return job_folder().uri


def dataset(name: str = "") -> str:
    """The URI or path of a data set that the job was given.

    Args:
        name: Which one, where `pytorch_job` was given several.

    Raises:
        ConfigError: There is none of this name; the message names those that are there.
    """
    if not name:
        found = os.environ.get(DATASET_ENV, "")
        if not found:
            raise ConfigError(
                "this job has no data set: give pytorch_job(dataset=…), or outside of a job set "
                f"{DATASET_ENV} to a path or URI"
            )
        return found
    known = _datasets()
    if name not in known:
        there = ", ".join(known) or "none"
        raise ConfigError(
            f"this job has no data set {name!r}, there is {there}: give it to pytorch_job by this "
            f'name, or outside of a job set {DATASETS_ENV} to {{"{name}": {{"uri": "PATH"}}}}'
        )
    return known[name]


@functools.cache
def job_folder() -> Folder:
    """The job's folder, made where it is a path. Raises StorageError."""
    remove_final_line_breaks(os.environ)
    opened = open_folder(os.environ.get(OUTPUT_ENV, "").strip() or str(Path.cwd() / OUTSIDE))
    opened.make("")
    return opened


def whole_step(step: Any) -> int:
    """A step of any type that counts. Raises TypeError, ValueError: no step has this number."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"step is {step!r} and must be a whole number; see int()") from None
    if not 0 <= number < _MOST_STEPS:
        raise ValueError(f"step is {number} and must not be below 0 or above {_MOST_STEPS}")
    return number


def say(words: str) -> None:
    """Tells the person who reads the log, once for the job."""
    if rank() == 0:
        print(f"kfp-pytorch: {words}", file=sys.stderr, flush=True)


def check_no_loader_worker(call: str) -> None:
    """Raises ConfigError: this is a worker of a DataLoader, of whose calls nobody would know."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise ConfigError(
            f"script.{call} was called in a worker of a DataLoader, which is a process of its own: "
            "call it in the training loop, with what the loader returns"
        )


def is_sharded(value: Any) -> bool:
    """Whether it is a tensor of which each rank has a part; known without importing torch."""
    return any(kind.__name__ in _SHARDED for kind in type(value).__mro__)


def _datasets() -> dict[str, str]:
    text = os.environ.get(DATASETS_ENV, "").strip()
    try:
        return {name: str(about["uri"]) for name, about in json.loads(text or "{}").items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{DATASETS_ENV} is {text[:200]!r} and must be JSON such as "
            '{"train": {"uri": "PATH"}}'
        ) from None


def _of_group(what: str, variable: str, default: int) -> int:
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        _joined[what] = getattr(group, f"get_{what}")()
    return _joined[what] if what in _joined else _number(variable, default)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    return int(text) if text.isdecimal() else default
