"""The export: a program that serves without the class of the model.

- `export/model.pt2`: the program, for a batch of any size.
- `export/samples.json`: instances with the program's predictions.
- `export/triton/`: where it is asked for, the same model as ONNX in a repository of Triton.
- `export/model.json`: the description of all, with the sha256 of each file; written last.

Or, of a model in a format of its own: its files, and `export/model.json`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_pytorch import __version__
from kfp_pytorch.launcher.constants import (
    MODEL_FILE,
    MODEL_FORMAT,
    MODEL_VERSION,
    TRITON_FOLDER,
)
from kfp_pytorch.training import triton_repository
from kfp_pytorch.training.errors import ExportError
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import Folder, LocalFolder, sha256

if TYPE_CHECKING:
    import torch

FOLDER = "export"
PROGRAM = "model.pt2"
SAMPLES = "samples.json"
MODEL = MODEL_FILE
_COPIED_AT_ONCE = 2**22
_CHANGED = "it was changed or deleted after the export; give each job a folder of its own"


def publish(
    folder: Folder,
    program: torch.export.ExportedProgram,
    sample: Callable[[torch.nn.Module], list[dict[str, Any]]],
    short: dict[str, Any],
    preprocessing: dict[str, Any],
    triton_name: str = "",
) -> dict[str, Any]:
    """Writes a program with its samples and its description.

    `sample`: returns samples with the predictions of the program, as read back; `short`: the short
    form of `model.json`, see `description`; `triton_name`: the model's name in a repository of
    Triton, empty for none. Returns `export` and `samples` of the termination message. Raises
    ExportError: there can be no such repository. Raises StorageError.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-export-") as scratch:
        path = Path(scratch) / PROGRAM
        torch.export.save(program, path)
        # No description of files that are about to change.
        folder.remove(f"{FOLDER}/{MODEL}")
        folder.remove(f"{FOLDER}/{TRITON_FOLDER}")
        samples = sample(torch.export.load(path).module())
        program_facts = {"sha256": sha256(path), "bytes": path.stat().st_size}
        _copy(path, folder, PROGRAM)
        repository = {}
        if triton_name:
            made = Path(scratch) / TRITON_FOLDER
            tensors = short["inputs"], short["outputs"]
            triton_repository.write(made, triton_name, program, *tensors)
            short = {**short, "triton": triton_name}
            repository = _copied(made, folder, f"{TRITON_FOLDER}/")
    samples_content = json.dumps(samples, separators=(",", ":"), allow_nan=False).encode()
    job_folder.write(folder, f"{FOLDER}/{SAMPLES}", samples_content)
    full = {
        **short,
        "program": PROGRAM,
        "preprocessing": preprocessing,
        "files": {PROGRAM: program_facts, SAMPLES: _facts(samples_content)},
        # Apart from those that this project's predictor wants.
        **({"triton_files": repository} if repository else {}),
    }
    return {"export": _described(folder, short, full), "samples": samples}


def publish_files(folder: Folder, files: Path, short: dict[str, Any]) -> dict[str, Any]:
    """Writes a model in a format of its own: the files of a folder, and their description.

    `short`: the short form of `model.json`. Returns `export` and `samples` of the termination
    message. Raises StorageError.
    """
    folder.remove(FOLDER)
    folder.make(FOLDER)
    facts = _copied(files, folder, "")
    return {"export": _described(folder, short, {**short, "files": facts}), "samples": []}


def _described(folder: Folder, short: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """Writes `model.json`; returns `export` of the termination message."""
    made_by = {"python": platform.python_version(), "kfp-pytorch": __version__}
    about = {**full, "version": MODEL_VERSION, "versions": {**short["versions"], **made_by}}
    content = json.dumps(about, indent=1, allow_nan=False).encode()
    job_folder.write(folder, f"{FOLDER}/{MODEL}", content)
    return {"path": FOLDER, "sha256": _facts(content)["sha256"], "model": short}


def _copy(path: Path, folder: Folder, name: str) -> None:
    with path.open("rb") as source, folder.writer(f"{FOLDER}/{name}") as target:
        shutil.copyfileobj(source, target, _COPIED_AT_ONCE)


def _copied(files: Path, folder: Folder, below: str) -> dict[str, dict[str, Any]]:
    """Copies a folder to the export; returns what `model.json` says of its files.

    `below`: where in the export, empty or ending in a slash.
    """
    facts = {}
    for path in sorted(each for each in files.rglob("*") if each.is_file()):
        name = f"{below}{path.relative_to(files).as_posix()}"
        folder.make(Path(FOLDER, name).parent.as_posix())
        _copy(path, folder, name)
        facts[name] = {"sha256": sha256(path), "bytes": path.stat().st_size}
    return facts


def description(
    inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], classes: list[str]
) -> dict[str, Any]:
    """The short form of `model.json`; tensors have `name`, `shape` (-1: any size), `datatype`."""
    import torch

    return {
        "format": MODEL_FORMAT,
        "inputs": inputs,
        "outputs": outputs,
        **({"classes": classes} if classes else {}),
        "versions": {"torch": torch.__version__},
    }


def verify(folder: Folder, exported: dict[str, Any]) -> None:
    """Checks that an export is there as it was written; `exported`: what `publish` returned of it.

    An object store keeps checksums itself, so there the sizes are enough. Raises ExportError: a
    file is missing or has other content. Raises StorageError: it cannot be read.
    """
    place = exported["path"]
    where = f"{folder.uri}/{place}"
    try:
        content = folder.read(f"{place}/{MODEL}")
    except FileNotFoundError:
        raise ExportError(f"the export {where} has no {MODEL}: {_CHANGED}") from None
    if _facts(content)["sha256"] != exported["sha256"]:
        raise ExportError(f"{where}/{MODEL} is not the one that was written: {_CHANGED}")
    sizes = folder.sizes(place)
    described = json.loads(content)
    for name, facts in (described["files"] | described.get("triton_files", {})).items():
        if name not in sizes:
            raise ExportError(f"the export {where} has no {name}: {_CHANGED}")
        differs = sizes[name] != facts["bytes"]
        if not differs and isinstance(folder, LocalFolder):
            with folder.explained("read", f"{place}/{name}"):
                differs = sha256(folder.path / place / name) != facts["sha256"]
        if differs:
            raise ExportError(f"{where}/{name} is not what was written: {_CHANGED}")


def _facts(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
