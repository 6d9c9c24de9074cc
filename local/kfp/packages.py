"""`packages_to_install` of a step: an environment of its own, which sees this Python's packages.

It is kept below the cluster's root and used again by every step with the same command of KFP's to
install them. KFP itself is this Python's: see `_OF_KFP`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kfp_pytorch.local.processes import locks

_PIP = "python3 -m pip install"
# What KFP adds to the packages of a component, at any version of its own: itself, the environment
# that it makes for that with `use_venv`, and what it does on a machine without pip.
_OF_KFP = re.compile(
    r"python3 -m pip install (?:(?!&&).)*'kfp==[^']+'\s+'--no-deps'\s+'typing-extensions[^']*'"
    r"|^export PIP_DISABLE_PIP_VERSION_CHECK=1$|^tmp=\$\(mktemp -d\)$|^python3 -m venv .*$"
    r'|^\. "\$tmp/venv/bin/activate"$'
    r"|python3 -m ensurepip .*$",
    re.MULTILINE,
)
# A requirement as KFP writes it, and a path in it.
_REQUIREMENT = re.compile(
    r"'(?:[^']* @ |-r ?|--requirement[= ])?(?:file://)?([^'\[]+)(?:\[[^']*)?'"
)
# With these, pip installs somewhere else, such as into a person's own places.
_ELSEWHERE = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER"}
_COMPLETE = "complete"
# Another step may install the same packages, however long that takes.
_LOCK_WITHIN_S = 3600.0
_LINES = 15


class PreparationError(Exception):
    """What a step needs to start is not there."""


class InstallError(PreparationError):
    """The packages of a step cannot be installed."""


def installed(
    command: list[str], root: Path, variables: Mapping[str, str], tell: Callable[[str], None]
) -> tuple[list[str], dict[str, str]]:
    """Installs what a step's command installs, unless that was done before.

    `root`: where environments are kept. `variables`: the step's. `tell`: gets a line where packages
    are installed. Returns the rest of the command, and the variables with which it finds the
    packages. Raises InstallError.
    """
    if command[:2] != ["sh", "-c"] or _PIP not in command[2]:
        return command, {}
    script, program = _OF_KFP.sub("true", command[2]), command[3:]
    if _PIP not in script:
        return program, {}
    of = "\0".join([script, sys.prefix, sys.version, *_local_files(script)])
    folder = root / "environments" / hashlib.sha256(of.encode()).hexdigest()[:16]
    path = os.pathsep.join([str(folder / "bin"), variables["PATH"]])
    try:
        _install_once(folder, script, {**variables, "PATH": path}, tell)
    except OSError as error:
        where = error.filename or folder
        raise InstallError(
            f"No environment for this step's packages: {where}: {error.strerror or error}"
        ) from None
    return program, {"PATH": path}


def _local_files(script: str) -> Iterator[str]:
    """The files and folders that are installed, and when they were last changed."""
    for path in map(Path, _REQUIREMENT.findall(script)):
        if path.exists():
            files = [path, *path.glob("*"), *path.rglob("*.py")]
            times = [each.stat().st_mtime_ns for each in files if each.is_file()]
            yield f"{path} {max(times, default=0)}"


def _install_once(
    folder: Path, script: str, variables: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    kept = {name: value for name, value in variables.items() if name not in _ELSEWHERE}
    # Nobody reads its warnings. A look for conflicts among all packages of this Python takes
    # seconds; to pip, 0 says that it is not to be done.
    kept |= {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_WARN_CONFLICTS": "0"}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("a") as lock:
        if not locks.take(lock):
            tell("Waiting for another step that installs the same packages.")
            if not locks.take(lock, within=_LOCK_WITHIN_S):
                raise InstallError(f"Another step has {lock.name} for an hour; end it first.")
        if not (folder / _COMPLETE).exists():
            tell(f"Installing this step's packages into {folder}, not into {sys.prefix}.")
            _install(folder, script, kept, lock.fileno())


def _install(folder: Path, script: str, variables: Mapping[str, str], lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        venv.create(folder, symlinks=True, with_pip=importlib.util.find_spec("pip") is None)
        _show_own_packages(folder)
        ran = subprocess.run(
            ["sh", "-c", script, "true"],
            env=variables,
            # If this process is killed, the lock is held until pip has ended as well.
            pass_fds=[lock],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InstallError(f"No environment for this step's packages: {error}") from None
    if ran.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        lines = ran.stdout.splitlines()
        last = "\n".join([each for each in lines if not each.startswith("WARNING: ")][-_LINES:])
        raise InstallError(
            f"This step's packages_to_install cannot be installed; pip says:\n{last}\n"
            f"Without a network, install them into {sys.prefix} first: they are then found there."
        )
    (folder / _COMPLETE).touch()


def _show_own_packages(folder: Path) -> None:
    """Has an environment find this Python's packages, after its own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    lines = [
        f"import site; site.addsitedir({place!a})\n" for place in places if Path(place).is_dir()
    ]
    (folder / "lib" / version / "site-packages" / "of-this-python.pth").write_text("".join(lines))
