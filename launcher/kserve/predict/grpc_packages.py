"""The packages of gRPC, which a step's image may not have.

KFP installs itself in a step without its dependencies. So these are imported where gRPC is used and
nowhere else, and installed with pip, as KFP is, where the image does not have them.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.runtime.printing import log

# As in launcher/pyproject.toml, whose extra `grpc` has them.
PACKAGES = ("grpcio>=1.60,<2", "protobuf>=5,<8")
_INSTALL_SECONDS = 300
_SHOWN = 600


class CannotInstall(StepError):
    """The step's image has no gRPC, and pip cannot install it."""


def grpc() -> Any:
    """Return the package grpc. Raises CannotInstall."""
    # Its own log would come after the step's message at the end of stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return _imported("grpc")


def protobuf() -> Any:
    """Return the modules of protobuf that messages are made with. Raises CannotInstall."""
    names = ("descriptor_pb2", "descriptor_pool", "message", "message_factory")
    return SimpleNamespace(**{name: _imported(f"google.protobuf.{name}") for name in names})


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        _install()
        return importlib.import_module(name)


def _install() -> None:
    log(f"Installing {' and '.join(PACKAGES)}, which this step's image does not have.")
    folder = tempfile.mkdtemp(prefix="kfp-pytorch-grpc-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = ("--quiet", "--disable-pip-version-check", "--target", folder)
    command = [sys.executable, "-m", "pip", "install", *options, *PACKAGES]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
        said = done.stderr.strip() if done.returncode else ""
        failed = bool(done.returncode)
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, said = True, str(error)
    if failed:
        raise CannotInstall(
            f"protocol 'grpc' needs the Python packages {' and '.join(PACKAGES)}, which this "
            "step's image does not have, and pip could not install them. Compile with an image "
            "that has them (kfp-pytorch compile --launcher image=…; `make images` builds it), or "
            f"give the task one by task.set_container_image(…).\npip said: {said[-_SHOWN:]}"
        )
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
