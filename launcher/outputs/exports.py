"""Whether what training named as its export can be one, as far as this step can read it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import CLAIMS_ENV, MODEL_FILE
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import storage
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.termination_messages import Export, Outcome


def wrong_export(
    outcome: Outcome, folder: Location, namespace: str, environ: Mapping[str, str] = os.environ
) -> str:
    """Say why what training named as its export cannot be one; empty where it can, or named none.

    `folder`: the job's folder; `namespace`: that of its claim. Whether the export is there and
    whole is known where KFP_PYTORCH_CLAIMS names the folder of claims (NAMESPACE/CLAIM below it),
    as for the steps of a local run; elsewhere only the training container checks it.
    """
    if outcome.success is None or outcome.success.export is None:
        return ""
    export = outcome.success.export
    if not _is_below(export.path):
        return (
            f"Training reported its export at {export.path!r}, which is no folder below the job's, "
            f"{folder.uri}"
        )
    claims = environ.get(CLAIMS_ENV, "")
    claim = Path(claims, namespace, folder.host)
    if not claims or not folder.on_claim or not claim.is_dir():
        return ""
    try:
        damage = _damage(claim / folder.path / export.path, export)
    except OSError as error:
        damage = f"{error.filename} cannot be read: {error.strerror}"
    return damage and (
        f"Training reported its export at {folder.under(export.path).uri}, and {damage}"
    )


def _is_below(path: str) -> bool:
    try:
        return not path.startswith("/") and "://" not in path and bool(storage.relative("", path))
    except InputError:
        return False


def _damage(path: Path, export: Export) -> str:
    """What of an export is missing or is not what was written. Raises OSError."""
    if not path.is_dir():
        return "there is no such folder"
    description = path / MODEL_FILE
    if not description.is_file():
        # Of a model in a format of its own a program names the folder alone.
        return f"there is no {MODEL_FILE} in it" if export.sha256 else ""
    content = description.read_bytes()
    if export.sha256 and hashlib.sha256(content).hexdigest() != export.sha256:
        return f"its {MODEL_FILE} is not the one that was written: the sha256 differs"
    try:
        files = {
            str(name): (int(facts["bytes"]), str(facts["sha256"]))
            for name, facts in _files(json.loads(content)).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MODEL_FILE} has no `files` with the sha256 and the bytes of each"
    for name, (size, digest) in files.items():
        file = path / name
        if not file.is_file():
            return f"there is no {name} in it"
        if file.stat().st_size != size or _sha256(file) != digest:
            return f"its {name} is not the one that was written: the sha256 differs"
    return ""


def _files(description: Any) -> Mapping[str, Any]:
    """What a description says of each file, those of a repository of Triton among them."""
    return {**description["files"], **description.get("triton_files", {})}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
