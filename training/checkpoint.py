"""Checkpoints: complete or absent, whatever happens while one is written.

    checkpoints/step-00000026/state.pt     weights, optimizer, random states
    checkpoints/step-00000026/meta.json    written last: what is in it, its size and its sha256
    checkpoints/latest                     the newest one's name, written after that

A folder with no `meta.json` is an attempt that was cut short.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kfp_pytorch.training import storage
from kfp_pytorch.training.errors import CheckpointError, StorageError
from kfp_pytorch.training.storage import Folder

LOG = logging.getLogger("kfp_pytorch.training")
FORMAT = "kfp-pytorch-checkpoint"
VERSION = 1
FOLDER = "checkpoints"
LATEST = "latest"
STATE = "state.pt"
META = "meta.json"
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
        state: Tensors, and the plain values beside them.
        meta: What the checkpoint says of itself: format, version, step, and what was given.
        uri: Where it lies.
    """

    state: dict[str, Any]
    meta: dict[str, Any]
    uri: str


def save(folder: Folder, step: int, state: dict[str, Any], about: dict[str, Any]) -> str:
    """Writes a checkpoint, then lets `latest` point to it.

    Args:
        folder: The job's folder.
        step: The number of steps that are done.
        state: Tensors and plain values, such as `torch.load(weights_only=True)` reads.
        about: Finite, plain values that a person or a later run may want to know without
            reading the state.

    Returns:
        The checkpoint's name.

    Raises:
        StorageError: If it cannot be written. Older checkpoints stay as they are.
    """
    name = f"{_PREFIX}{step:08d}"
    # A step that is saved again, after a resume, must not mix with what lies there.
    folder.remove(f"{FOLDER}/{name}/{META}")
    with folder.writer(f"{FOLDER}/{name}/{STATE}") as file:
        torch.save(state, file)
        file.flush()
        size, digest = _fingerprint(Path(file.name))
    meta = {
        **about,
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "files": {STATE: {"bytes": size, "sha256": digest}},
    }
    storage.write(folder, f"{FOLDER}/{name}/{META}", _json(meta))
    storage.write(folder, f"{FOLDER}/{LATEST}", name.encode())
    return name


def prune(folder: Folder, keep: int) -> None:
    """Deletes all but the newest checkpoints, and what cut-short attempts left behind.

    Args:
        folder: The job's folder.
        keep: How many to keep.
    """
    names = _step_names(folder)
    whole = [name for name in names if META in folder.names(f"{FOLDER}/{name}")]
    for name in set(names) - set(whole[-keep:]):
        # Without its description first, so that a half deleted one is not taken for whole.
        folder.remove(f"{FOLDER}/{name}/{META}")
        folder.remove(f"{FOLDER}/{name}")


def discard_after(folder: Folder, step: int) -> None:
    """Deletes what lies after the checkpoint that a run goes on from: it could not be read."""
    for name in _step_names(folder):
        if int(name.removeprefix(_PREFIX)) > step:
            folder.remove(f"{FOLDER}/{name}/{META}")
            folder.remove(f"{FOLDER}/{name}")


def clear(folder: Folder) -> None:
    """Deletes all checkpoints of a job's folder."""
    folder.remove(FOLDER)


def newest(folder: Folder, must_match: dict[str, Any]) -> Checkpoint | None:
    """Reads the newest checkpoint that can be read.

    Args:
        folder: A job's folder.
        must_match: Names and values that the checkpoint's `meta` has to have, such as the model.

    Returns:
        The checkpoint, or None if the folder has none and never had a complete one.

    Raises:
        CheckpointError: If a checkpoint is of another kind or another model, or if there are
            some and none can be read.
    """
    names = _step_names(folder)
    problems = []
    for name in reversed(names):
        try:
            meta = _read_meta(folder, name)
            if meta is None:
                continue
            where = f"{folder.uri}/{FOLDER}/{name}"
            _check_ours(meta, must_match, where)
            return Checkpoint(_read_state(folder, name, meta), meta, where)
        except _UnreadableError as error:
            LOG.warning("the checkpoint %s cannot be read, an older one is tried: %s", name, error)
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError(
            f"none of the checkpoints in {folder.uri}/{FOLDER} can be read ({'; '.join(problems)});"
            " to start anew and delete them, pass --resume never"
        )
    return None


def newest_of_other(folder: Folder, must_match: dict[str, Any]) -> Checkpoint:
    """Like `newest`, of a folder that was named to start from, where there must be one.

    Raises:
        CheckpointError: If it has none, or `newest` refuses what it has.
    """
    found = newest(folder, must_match)
    if found is None:
        there = ", ".join(folder.names(FOLDER) or folder.names()) or "nothing"
        raise CheckpointError(
            f"{folder.uri} was named to resume from and has no checkpoint of this program in "
            f"{FOLDER}/; there is {there}"
        )
    return found


class _UnreadableError(Exception):
    """A checkpoint is there, and damaged."""


def _step_names(folder: Folder) -> list[str]:
    """The checkpoints' names, oldest first."""
    names = [name for name in folder.names(FOLDER) if name.startswith(_PREFIX)]
    return sorted(name for name in names if name.removeprefix(_PREFIX).isdigit())


def _read_meta(folder: Folder, name: str) -> dict[str, Any] | None:
    try:
        meta = json.loads(folder.read(f"{FOLDER}/{name}/{META}"))
    except FileNotFoundError:
        return None
    except (ValueError, StorageError) as error:
        raise _UnreadableError(f"{META}: {error}") from error
    if not isinstance(meta, dict):
        raise _UnreadableError(f"{META} holds no object")
    return meta


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
    for key, value in must_match.items():
        if meta.get(key) != value:
            raise CheckpointError(
                f"{where} was made with {key} {meta.get(key)!r}, and this run has {value!r}; "
                "use another folder, or pass --resume never to delete it and start anew"
            )


def _read_state(folder: Folder, name: str, meta: dict[str, Any]) -> dict[str, Any]:
    expected = (meta.get("files") or {}).get(STATE) or {}
    try:
        with folder.local(f"{FOLDER}/{name}/{STATE}") as path:
            size, digest = _fingerprint(path)
            if size != expected.get("bytes"):
                raise _UnreadableError(f"{STATE} has {size} bytes, not {expected.get('bytes')}")
            if digest != expected.get("sha256"):
                raise _UnreadableError(f"{STATE} is not what was written: its sha256 differs")
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, StorageError) as error:
        raise _UnreadableError(f"{STATE}: {error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{folder.uri}/{FOLDER}/{name}/{STATE} holds more than tensors and plain values, "
            "so reading it could run code; it is refused"
        ) from error
    return state


def _fingerprint(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path.stat().st_size, digest


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode()
