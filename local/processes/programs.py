"""The programs of this machine that stand for those of an image."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What an image of Python has on its PATH, and what stands for it here.
OF_PYTHON = {
    "python": [sys.executable],
    "python3": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
# Words of a shell's script, what has a port after it, and an address of this machine.
WORD = re.compile(r"[^\s\"'`;|&()<>=]+")
PORT_OPTION = re.compile(r"--?(?:.*[_-])?port=?")
PORT_VARIABLE = re.compile(r"(?:^|.*_)PORT")
BOUND = re.compile(r"(0\.0\.0\.0|127\.0\.0\.1|localhost|\[::\]|\*|):(\d+)")
_SHELL = re.compile(r"(?:.*/)?(?:|a|ba|da|k|z)sh")


def script_at(words: Sequence[str]) -> int:
    """Which word of a command line is the script of a shell, as in `sh -c SCRIPT`; 0 for none."""
    if words and _SHELL.fullmatch(words[0]):
        for at, word in enumerate(words[1:-1], 1):
            if not word.startswith("-"):
                return 0
            if re.fullmatch("-[a-z]*c", word):
                return at + 1
    return 0


# Either starts the processes of a program of MPI.
_OF_MPI = ("mpirun", "mpiexec")


def mpi_folder() -> Path | None:
    """Where an MPI is: among what pods find, else on this process's own PATH; None for nowhere."""
    for path in (_pods_path(), os.environ.get("PATH", "")):
        for program in _OF_MPI:
            found = shutil.which(program, path=path)
            if found:
                return Path(found).parent
    return None


def is_here(program: str) -> bool:
    """Whether a container's program is found; a path may be one of a volume, which is not known."""
    return (
        "/" in program
        or program in OF_PYTHON
        or shutil.which(program, path=_pods_path()) is not None
    )


def _pods_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), SYSTEM_PATH])
