"""The programs of this machine that stand for those of an image."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What an image of Python has on its PATH, and what stands for it here.
OF_PYTHON = {
    "python": [sys.executable],
    "python3": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}


def is_here(program: str) -> bool:
    """Whether a container's program is found; a path may be one of a volume, which is not known."""
    path = os.pathsep.join([str(Path(sys.executable).parent), SYSTEM_PATH])
    return "/" in program or program in OF_PYTHON or shutil.which(program, path=path) is not None
