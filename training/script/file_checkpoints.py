"""Checkpoints that another library saves as files, kept as they are: complete or absent."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.checkpoint.checksum_writer import CHUNK_BYTES, MeasuredFile
from kfp_pytorch.training.errors import CheckpointError
from kfp_pytorch.training.script import checkpointing, place
from kfp_pytorch.training.storage.job_folder import Folder, LocalFolder


def save_checkpoint_files(path: str | os.PathLike[str], step: int, *, keep: int = 2) -> None:
    """Keeps what another library saved, such as Accelerate's `save_state`, as a checkpoint.

    Rank 0 copies the files into the job's folder, and the others return at once.

    Args:
        path: A file, or a folder with all that is in it.
        step: How many steps are done. Checkpoints of later steps are deleted.
        keep: How many of the newest are kept.

    Raises:
        FileNotFoundError: There is no file.
        TypeError: The step is no whole number.
        ValueError: The step is below 0, or nothing would be kept.
        StorageError: The job's folder cannot be written to.
    """
    step = checkpointing.check(step, keep)
    if place.rank() != 0:
        return
    given = Path(path)
    files = [each for each in sorted(given.rglob("*")) if each.is_file()] or [given]
    if not files[0].is_file():
        raise FileNotFoundError(f"there is no file to keep as a checkpoint: {given}")
    root = given if given.is_dir() else given.parent
    checkpointing.begin(step)
    names = {f"{catalog.FILES}/{each.relative_to(root).as_posix()}": each for each in files}
    written = {name: _copy(each, f"{catalog.path_of(step)}/{name}") for name, each in names.items()}
    checkpointing.complete(step, keep, written)


def local(folder: Folder, step: int, names: Sequence[str]) -> str:
    """The path of a folder with the files of a checkpoint; see `Checkpoint.files`."""
    path, inside = catalog.path_of(step), f"{catalog.FILES}/"
    # What `meta.json` says may not lead out of the folder that they are downloaded to.
    if not all(n.startswith(inside) and ".." not in PurePosixPath(n).parts for n in names):
        raise CheckpointError(
            f"{folder.uri}/{path} has no files of save_checkpoint_files: load() it"
        )
    if isinstance(folder, LocalFolder):
        return str(folder.path / path / catalog.FILES)
    target = Path(tempfile.mkdtemp(prefix="kfp-pytorch-checkpoint-"))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with folder.reader(f"{path}/{name}") as source, (target / name).open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
    return str(target / catalog.FILES)


def _copy(path: Path, name: str) -> dict[str, Any]:
    """Copies a file into the job's folder; returns its size and sha256."""
    with place.job_folder().writer(name) as target, path.open("rb") as source:
        measured = MeasuredFile(target)
        shutil.copyfileobj(source, measured, CHUNK_BYTES)
    return measured.facts()
