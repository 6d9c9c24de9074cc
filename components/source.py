"""The input `source` of a job: code that travels in the pipeline package."""

from __future__ import annotations

import base64
import bz2
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import source as source_input

# KFP hands all inputs of a step on as one argument, which Linux limits to 131,072 bytes; this
# much is left for the others.
_LIMIT = 90_000
# Larger, the files travel compressed. A person can read the others in KFP's UI, and Argo compresses
# what is text far better.
_PLAIN = 30_000
_LEFT_OUT = ("__pycache__",)


def source(place: str | os.PathLike[str]) -> dict[str, Any]:
    """Takes code along in a pipeline, for the input `source` of `pytorch_job` and `train_job`.

    The pods have the files at `/mnt/kfp-pytorch/source`, byte for byte, first on Python's path: of
    `source("train.py")` `torchrun -m train` runs it, and of `source("my_package")`
    `torchrun -m my_package.train` does. Hidden files and `__pycache__` are left out, links are
    followed, and each file may be executed.

    Args:
        place: A Python file, a folder, whose name the pods see too, or `pvc://CLAIM/path`, a folder
            of a claim, which is mounted and not read now.

    Returns:
        What the input takes: the same for the same files, so that compiled pipelines are too.

    Raises:
        ValueError: There is no such file, or the files are too large: more than 1 MiB in all, or
            more than 90,000 bytes when compressed.
    """
    if isinstance(place, str) and "://" in place:
        given: dict[str, Any] = {"uri": place}
        source_input.read("source", given)
        return given
    files = _files(place)
    # Not read before: a folder may have far more than what is meant.
    source_input.check("source", {name: path.stat().st_size for name, path in files.items()})
    plain = {name: source_input.as_json(path.read_bytes()) for name, path in files.items()}
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True)
    if len(text.encode()) <= _PLAIN:
        return {"files": plain}
    packed = base64.b64encode(bz2.compress(text.encode())).decode()
    if len(packed) > _LIMIT:
        raise InputError(
            f"source {os.fspath(place)!r} is {len(packed):,} bytes when compressed; a step can be "
            f"handed at most {_LIMIT:,}. Put the code on a claim and give "
            "source('pvc://CLAIM/path'), or build it into the image."
        )
    return {"packed": packed}


def _files(place: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the files by their paths below the mount."""
    if not isinstance(place, (str, os.PathLike)) or not os.fspath(place):
        raise InputError(f"source is {place!r}; give a Python file, a folder or pvc://CLAIM/path.")
    # The name of a link is the one that the code is imported by, so it is not followed.
    root = Path(os.path.abspath(place))  # noqa: PTH100
    if root.is_file():
        return {root.name: root}
    if not root.is_dir():
        raise InputError(
            f"source is {os.fspath(place)!r}, where neither a file nor a folder is (this is "
            f"{Path.cwd()})."
        )
    taken = itertools.islice(_taken(root, ()), source_input.MOST_FILES + 1)
    found = {f"{root.name}/{path.relative_to(root).as_posix()}": path for path in taken}
    if not found:
        raise InputError(f"source {os.fspath(place)!r} has no files.")
    return dict(sorted(found.items()))


def _taken(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    real = folder.resolve()
    if real in above:
        raise InputError(f"source has {os.fspath(folder)!r}, a link to a folder above it; drop it.")
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in _LEFT_OUT:
            continue
        if path.is_dir():
            yield from _taken(path, (*above, real))
        elif path.is_file():
            yield path
        else:
            raise InputError(
                f"source has {os.fspath(path)!r}, which is neither a file nor a folder, or a link "
                "to none; drop it."
            )
