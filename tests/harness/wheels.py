"""The wheel of a package that nobody else has."""

from __future__ import annotations

import zipfile
from pathlib import Path

INFO = "kfp_pytorch_try-1.0.dist-info"


def write_wheel(folder: Path) -> Path:
    """Writes the wheel of `kfp-pytorch-try`, with the module `try_it`; returns its path."""
    path = folder / "kfp_pytorch_try-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: kfp-pytorch-try\nVersion: 1.0\nRequires-Dist: click\n"
    with zipfile.ZipFile(path, "w") as file:
        # It finds what this Python has.
        file.writestr("try_it.py", "import kfp_pytorch\n")
        file.writestr(f"{INFO}/METADATA", metadata)
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr(f"{INFO}/WHEEL", tag)
        file.writestr(f"{INFO}/RECORD", "")
    return path
