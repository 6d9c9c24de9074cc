"""Checkpoints: complete or absent, whatever happens while one is written.

    checkpoints/step-00000026/__0_0.distcp   what rank 0 wrote of the tensors; one such file a rank
    checkpoints/step-00000026/.metadata      which tensor is where
    checkpoints/step-00000026/state.pt       of a script: all of the state that is not sharded
    checkpoints/step-00000026/files/     of a script: what another library saved, as it is
    checkpoints/step-00000026/meta.json      written last: what is kept beside the tensors, and the
                                             size and sha256 of each file
    checkpoints/latest                       the newest one's name, written after that
    checkpoints/best                         the name of the one with the lowest held-out loss

A folder with no `meta.json` is incomplete.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.training.errors import CheckpointError, StorageError
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import Folder, LocalFolder, open_folder, sha256

LOG = logging.getLogger("kfp_pytorch.training")
FORMAT = "kfp-pytorch-checkpoint"
VERSION = 2
FOLDER = "checkpoints"
LATEST = "latest"
BEST = "best"
META = "meta.json"
FILES = "files"
_PREFIX = "step-"
_NAME = re.compile(_PREFIX + r"\d+", re.ASCII)
# The files of an incomplete checkpoint.
_INCOMPLETE = re.compile(r"__\d+_\d+\.distcp|state\.pt|files|\..*")
_HASHED_AT_ONCE = 8


@dataclass(frozen=True)
class Checkpoint:
    """A complete, undamaged checkpoint."""

    folder: Folder  # the job's folder
    meta: dict[str, Any]  # its `meta.json`: format, version, step, files, and what else was written

    @property
    def step(self) -> int:
        """The number of steps that were done."""
        return int(self.meta["step"])

    @property
    def path(self) -> str:
        """The path of its files in the job's folder."""
        return path_of(self.step)

    @property
    def uri(self) -> str:
        """Its path or URI."""
        return f"{self.folder.uri}/{self.path}"


def path_of(step: int) -> str:
    """The path in a job's folder of the checkpoint of a step."""
    return f"{FOLDER}/{_PREFIX}{step:08d}"


def complete(
    folder: Folder, step: int, about: dict[str, Any], files: dict[str, dict[str, Any]]
) -> None:
    """Completes a checkpoint whose files are all written, and makes `latest` name it.

    `about`: finite, plain values: what a later run or a person needs beside the tensors; `files`:
    size and sha256 of each file at `path_of(step)`, by name. Raises StorageError: if it cannot be
    written. Older checkpoints stay as they are.
    """
    meta = {**about, "format": FORMAT, "version": VERSION, "step": step, "files": files}
    content = json.dumps(meta, indent=1, allow_nan=False).encode()
    job_folder.write(folder, f"{path_of(step)}/{META}", content)
    job_folder.write(folder, f"{FOLDER}/{LATEST}", Path(path_of(step)).name.encode())


def is_complete(folder: Folder, step: int) -> bool:
    """Whether there is a checkpoint of this step."""
    return META in folder.names(path_of(step))


def newest_step(folder: Folder) -> int | None:
    """The step of the newest complete checkpoint, without a look at its content; or None."""
    names = _complete_names(folder)
    return _step(names[-1]) if names else None


def known_step(uri: str) -> dict[str, int | None]:
    """The newest complete checkpoint of a job's folder, for a `failure_message`.

    Empty where it is not known: an object store, which may be what failed, is not asked.
    """
    with contextlib.suppress(StorageError):
        folder = open_folder(uri)
        if isinstance(folder, LocalFolder):
            return {"checkpoint": newest_step(folder)}
    return {}


def discard(folder: Folder, step: int) -> None:
    """Deletes the checkpoint of a step, if there is one; half of it does not count as complete."""
    _delete(folder, Path(path_of(step)).name)


def prune(folder: Folder, keep: int, losses: dict[int, float] | None = None) -> None:
    """Deletes all but the newest checkpoints and the best, and incomplete ones.

    Those after the newest complete one are kept: a rank may be writing the last step now. `losses`:
    the loss on held-out samples, by step. `best` names the complete checkpoint with the lowest.
    """
    names, complete_names = _step_names(folder), _complete_names(folder)
    evaluated = {
        name: losses[_step(name)] for name in complete_names if losses and _step(name) in losses
    }
    best = sorted(evaluated, key=lambda name: evaluated[name])[:1]
    if best:
        job_folder.write(folder, f"{FOLDER}/{BEST}", best[0].encode())
    older = names[: names.index(complete_names[-1])] if complete_names else names
    for name in {*older} - {*complete_names[-keep:], *best}:
        _delete(folder, name)


def discard_after(folder: Folder, step: int) -> None:
    """Deletes checkpoints after the one that a run resumes from: they could not be read."""
    for name in _step_names(folder):
        if _step(name) > step:
            _delete(folder, name)


def clear(folder: Folder) -> None:
    """Deletes all checkpoints of a job's folder."""
    folder.remove(FOLDER)


def newest(folder: Folder, must_match: dict[str, Any]) -> Checkpoint | None:
    """Finds the newest checkpoint that is complete and undamaged.

    `must_match`: what the checkpoint's `meta` has to agree with, such as the model. Returns None if
    the folder never had a complete one. Raises CheckpointError: if one has another format or
    another model, or if there are some and none can be read.
    """
    names = _step_names(folder)
    for name in names:
        _check_incomplete(folder, f"{FOLDER}/{name}")
        if f"{FOLDER}/{name}" != path_of(_step(name)):
            raise CheckpointError(
                f"{folder.uri}/{FOLDER}/{name} is no name that this program gives: rename it to "
                f"{Path(path_of(_step(name))).name} if it wrote it, or move it away"
            )
    problems = []
    for name in reversed(names):
        try:
            meta = _read_meta(folder, name)
            if meta is None:
                continue
            _check_ours(meta, must_match, f"{folder.uri}/{FOLDER}/{name}")
            _check_files(folder, f"{FOLDER}/{name}", meta)
            return Checkpoint(folder, {**meta, "step": _step(name)})
        except _UnreadableError as error:
            LOG.warning("the checkpoint %s cannot be read, an older one is tried: %s", name, error)
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError(
            f"none of the checkpoints in {folder.uri}/{FOLDER} can be read ({'; '.join(problems)});"
            " to start again, delete that folder, or pass --resume never to our own trainer"
        )
    return None


def newest_of_other(folder: Folder, must_match: dict[str, Any]) -> Checkpoint:
    """Like `newest`, for --resume-from, where there must be one. Raises CheckpointError."""
    found = newest(folder, must_match)
    if found is None:
        there = ", ".join(folder.names(FOLDER) or folder.names()) or "nothing"
        raise CheckpointError(
            f"{folder.uri} was named to resume from and has no checkpoint of this program in "
            f"{FOLDER}/; there is {there}. Name a job's folder, the output `folder` of its step"
        )
    return found


class _UnreadableError(Exception):
    """A checkpoint is damaged."""


def _step_names(folder: Folder) -> list[str]:
    """The checkpoints' names, oldest first."""
    return sorted(filter(_NAME.fullmatch, folder.names(FOLDER)), key=_step)


def _complete_names(folder: Folder) -> list[str]:
    return [name for name in _step_names(folder) if META in folder.names(f"{FOLDER}/{name}")]


def _step(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _delete(folder: Folder, name: str) -> None:
    # Its description first, so that a partly deleted one does not count as complete.
    folder.remove(f"{FOLDER}/{name}/{META}")
    folder.remove(f"{FOLDER}/{name}")


def _read_meta(folder: Folder, name: str) -> dict[str, Any] | None:
    try:
        content = folder.read(f"{FOLDER}/{name}/{META}")
        meta = json.loads(content, parse_constant=_refuse_constant)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, StorageError) as error:
        _raise_if_remote(folder, error)
        raise _UnreadableError(f"{META}: {error}") from error
    if not isinstance(meta, dict):
        raise _UnreadableError(f"{META} holds no object")
    return meta


def _refuse_constant(text: str) -> None:
    """No number of a checkpoint is NaN or infinite: see `complete`."""
    raise ValueError(f"{text} is no finite number")


def _check_incomplete(folder: Folder, where: str) -> None:
    """Refuses files of another program, which would be deleted as an incomplete checkpoint."""
    try:
        names = folder.names(where)
    except StorageError as error:
        if not isinstance(error.__cause__, NotADirectoryError):
            raise
        raise CheckpointError(
            f"{folder.uri}/{where} is a file, and a checkpoint of this program is a folder: move "
            "it away, and the newest that can be read is taken"
        ) from error
    others = [name for name in names if not _INCOMPLETE.fullmatch(name)]
    if others and META not in names:
        raise CheckpointError(
            f"{folder.uri}/{where} is no checkpoint of this program: it has no {META}, and there "
            f"is {others[0]}; move it away or use another folder"
        )


def _check_ours(meta: dict[str, Any], must_match: dict[str, Any], where: str) -> None:
    if meta.get("format") != FORMAT:
        raise CheckpointError(
            f"{where} is no checkpoint of this program: its format is {meta.get('format')!r}, "
            f"not {FORMAT!r}; move it away or use another folder"
        )
    if meta.get("version") != VERSION:
        raise CheckpointError(
            f"{where} has version {meta.get('version')!r}, and this program reads {VERSION}; "
            "use the release that wrote it"
        )
    # An earlier release that did not write a key is no reason to lose its steps.
    for key, value in must_match.items():
        if meta.get(key, value) != value:
            raise CheckpointError(
                f"{where} was made with {key} {meta[key]!r}, and this run has {value!r}; "
                "use another folder, or pass --resume never to delete it and start again"
            )


def _check_files(folder: Folder, where: str, meta: dict[str, Any]) -> None:
    """Checks that each file exists and has the content that was written.

    An object store keeps checksums itself, so there the sizes are enough.
    """
    files = meta.get("files")
    if not isinstance(files, dict) or not files:
        raise _UnreadableError(f"{META} names no files")
    try:
        sizes = folder.sizes(where)
        for name, facts in files.items():
            if name not in sizes:
                raise _UnreadableError(f"{name} is missing")
            if sizes[name] != facts["bytes"]:
                raise _UnreadableError(f"{name} has {sizes[name]} bytes, not {facts['bytes']}")
        if isinstance(folder, LocalFolder):
            _check_digests({folder.path / where / name: files[name]["sha256"] for name in files})
    except (OSError, StorageError, KeyError, TypeError) as error:
        _raise_if_remote(folder, error)
        raise _UnreadableError(str(error)) from error


def _raise_if_remote(folder: Folder, error: Exception) -> None:
    """Raises errors of an object store: they are temporary, and no sign of damage.

    To resume from an older checkpoint instead would lose steps, and delete the newest.
    """
    if isinstance(error, StorageError) and not isinstance(folder, LocalFolder):
        raise error


def _check_digests(expected: dict[Path, str]) -> None:
    with ThreadPoolExecutor(_HASHED_AT_ONCE) as threads:
        for path, found in zip(expected, threads.map(sha256, expected), strict=True):
            if found != expected[path]:
                raise _UnreadableError(f"{path.name} is not what was written: its sha256 differs")
