"""Reads the export that training writes: `model.json` and the `torch.export` program beside it."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kfp_pytorch.launcher.constants import MODEL_FORMAT, MODEL_VERSION
from kfp_pytorch.serving.limits import memory_limit, with_unit

DESCRIPTION = "model.json"
PROGRAM = "model.pt2"

# The protocol's names of what torch calls float16, int8 and so on.
DATATYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name.lower().replace("fp", "float"))
    for name in ("FP16", "FP32", "FP64", "INT8", "INT16", "INT32", "INT64", "UINT8")
}
# Constants in a program's archive that only pickle can read start with one of these
# (torch/csrc/export/pt2_archive_constants.h).
PICKLED_CONSTANTS = ("custom_obj_", "opaque_obj_")

LISTED = 20
LARGEST_DESCRIPTION = 16 * 1024 * 1024


class ExportError(Exception):
    """The model directory does not hold an export that can be served."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor, as the Open Inference Protocol describes it."""

    name: str  # the tensor's name
    shape: tuple[int, ...]  # its shape, the batch first; -1 stands for any size
    datatype: str  # its type in the protocol, such as `FP32`


@dataclass(frozen=True)
class Export:
    """An export that was read and whose files have the checksums that it states."""

    directory: Path  # the folder of its `model.json`
    input: TensorSpec  # the one input tensor
    output: TensorSpec  # the one output tensor
    classes: tuple[str, ...]  # the label of each class; none when the model is no classifier
    run: Callable[[torch.Tensor], torch.Tensor]  # the program
    preprocessing: dict[str, Any]  # what `model.json` states of the input's values and sizes

    @property
    def longest(self) -> int | None:
        """The largest size where the input's is free; None where `model.json` states none."""
        stated = self.preprocessing.get("longest")
        return stated if type(stated) is int and stated > 0 else None

    @property
    def values(self) -> tuple[float, float]:
        """The smallest and the largest value of the input; 0 to 255 where none are stated."""
        match self.preprocessing.get("values"):
            case [int() | float() as low, int() | float() as high] if low < high:
                return low, high
        return 0, 255


def load(model_dir: Path, device: str = "cpu") -> Export:
    """Reads the export in a directory, or in one of its subdirectories; see `find`.

    `device`: where the program runs, as torch names it.

    Raises ExportError: it is not of the format, incomplete, changed, or cannot be read or loaded.
    """
    try:
        directory = find(model_dir)
        description = _read_description(directory / DESCRIPTION)
        _verify_files(directory, description)
        return Export(
            directory=directory,
            input=_only_tensor(description, "inputs"),
            output=_only_tensor(description, "outputs"),
            classes=_classes(description),
            run=_load_program(directory / _program(description), device),
            preprocessing=_preprocessing(description),
        )
    except OSError as error:
        raise ExportError(
            f"{model_dir} cannot be read by user {os.getuid()} of group {os.getgid()}: {error}"
        ) from error


def find(model_dir: Path) -> Path:
    """Finds the directory that holds `model.json`: this one, or exactly one of those in it.

    Raises ExportError, which lists what is there.
    """
    if model_dir.is_file():
        raise ExportError(f"{model_dir} is a file: give its directory")
    if not model_dir.is_dir():
        raise ExportError(f"the model directory {model_dir} does not exist")
    if (model_dir / DESCRIPTION).is_file():
        return model_dir
    nested = sorted(path.parent for path in model_dir.glob(f"*/{DESCRIPTION}"))
    if len(nested) == 1:
        return nested[0]
    if nested:
        names = ", ".join(path.name for path in nested)
        raise ExportError(
            f"{model_dir} holds several exports ({names}): give the directory of one of them"
        )
    raise ExportError(
        f"no {DESCRIPTION} in {model_dir} or a directory in it: it is not the export that training "
        f"writes (<job's folder>/export). {_listing(model_dir)}"
    )


def _listing(directory: Path) -> str:
    files = sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    if not files:
        return "The directory is empty: is the storage URI right?"
    more = f" and {len(files) - LISTED} more" if len(files) > LISTED else ""
    return f"It holds: {', '.join(files[:LISTED])}{more}"


def _read_description(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > LARGEST_DESCRIPTION:
        raise ExportError(
            f"{path} has {size:,} bytes; a description has at most {LARGEST_DESCRIPTION:,}"
        )
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is not JSON: {error}") from error
    if not isinstance(description, dict):
        raise ExportError(f"{path} is not a JSON object")
    if description.get("format") != MODEL_FORMAT:
        raise ExportError(
            f"{path} has format {description.get('format')!r}; this predictor serves "
            f"{MODEL_FORMAT!r}"
        )
    if description.get("version", MODEL_VERSION) != MODEL_VERSION:
        raise ExportError(
            f"{path} has version {description['version']!r}; this predictor knows version "
            f"{MODEL_VERSION}: use a serving image of the same release as the training image"
        )
    return description


def _program(description: dict[str, Any]) -> str:
    return str(description.get("program") or PROGRAM)


def _verify_files(directory: Path, description: dict[str, Any]) -> None:
    files, program = description.get("files"), _program(description)
    if not isinstance(files, dict) or program not in files:
        raise ExportError(f"{directory / DESCRIPTION}: files: no checksum of {program}")
    for name, facts in files.items():
        path = directory / name
        if path.parent != directory:
            raise ExportError(f"{directory / DESCRIPTION}: files: {name!r} is not a plain name")
        if not path.is_file():
            raise ExportError(f"{path} is missing. {_listing(directory)}")
        expected = facts.get("sha256") if isinstance(facts, dict) else None
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise ExportError(
                f"{path} is not the file that was exported: its {path.stat().st_size} bytes have "
                f"the sha256 {found}, {DESCRIPTION} says {facts}. It was cut short or changed: "
                "export or copy it again"
            )


def _only_tensor(description: dict[str, Any], field: str) -> TensorSpec:
    tensors = description.get(field)
    if not isinstance(tensors, list) or len(tensors) != 1:
        raise ExportError(f"{DESCRIPTION}: {field}: this predictor serves models with exactly one")
    tensor = tensors[0]
    try:
        spec = TensorSpec(str(tensor["name"]), tuple(tensor["shape"]), str(tensor["datatype"]))
    except (KeyError, TypeError) as error:
        raise ExportError(
            f"{DESCRIPTION}: {field}[0]: needs name, shape and datatype, not {tensor!r}"
        ) from error
    if spec.datatype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise ExportError(
            f"{DESCRIPTION}: {field}[0].datatype: {spec.datatype!r} is none of {known}"
        )
    if not spec.shape or spec.shape[0] != -1:
        raise ExportError(
            f"{DESCRIPTION}: {field}[0].shape: the first dimension is the batch and must be -1, "
            f"not {list(spec.shape)}"
        )
    if not all(type(size) is int and (size == -1 or size > 0) for size in spec.shape):
        raise ExportError(
            f"{DESCRIPTION}: {field}[0].shape: each size is a whole number from 1 on, or -1 for "
            f"any, not {list(spec.shape)}"
        )
    return spec


def _classes(description: dict[str, Any]) -> tuple[str, ...]:
    classes = description.get("classes") or []
    if not isinstance(classes, list):
        raise ExportError(f"{DESCRIPTION}: classes: must be a list of labels, not {classes!r}")
    # A folder's name that was not UTF-8 has no place in an answer as it is.
    return tuple(str(label).encode(errors="backslashreplace").decode() for label in classes)


def _preprocessing(description: dict[str, Any]) -> dict[str, Any]:
    stated = description.get("preprocessing") or {}
    if not isinstance(stated, dict):
        raise ExportError(f"{DESCRIPTION}: preprocessing: must be an object, not {stated!r}")
    return stated


def _load_program(path: Path, device: str = "cpu") -> Callable[[torch.Tensor], torch.Tensor]:
    _check_archive(path)
    # torch.export.load unpickles tensors that it could not store as they are; with this it
    # unpickles nothing but tensors.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        exported = torch.export.load(path)
        if device != "cpu":
            from torch.export.passes import move_to_device_pass

            exported = move_to_device_pass(exported, device)
        program: Callable[[torch.Tensor], torch.Tensor] = exported.module().requires_grad_(False)
    except torch.OutOfMemoryError as error:
        raise ExportError(f"{path} does not fit into the memory of {device}: {error}") from error
    except Exception as error:
        raise ExportError(
            f"{path} does not load with torch {torch.__version__}: {type(error).__name__}: {error}"
        ) from error
    return program


def _check_archive(path: Path) -> None:
    """Refuses a program that is larger than memory, or that holds pickled objects."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        raise ExportError(f"{path} is not an archive of torch.export: {error}") from error
    size, limit = sum(member.file_size for member in members), memory_limit()
    if size > limit:
        raise ExportError(
            f"{path} takes {with_unit(size)} of memory, and this container has {with_unit(limit)}: "
            "give the predictor more memory"
        )
    names = [member.filename for member in members]
    pickled = [name for name in names if Path(name).name.startswith(PICKLED_CONSTANTS)]
    if pickled:
        raise ExportError(f"{path} holds pickled objects, which could run any code: {pickled}")
