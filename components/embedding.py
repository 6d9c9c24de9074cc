"""Puts the launcher's source into a component, so that a compiled package needs no image of ours.

KFP can do so itself (`embedded_artifact_path`), but its archive carries times, owners and modes,
so two compiles of the same tree differ. `archive` makes one that depends on the source alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kfp import dsl

from kfp_pytorch.components.archive import archive_for

BASE_IMAGE = "python:3.12-slim"
# What the launcher imports beyond the standard library. KFP installs itself with `--no-deps`.
# The client takes any urllib3, and only from 2.3 on one thread can end what another one reads.
PACKAGES = ("kubernetes>=30.1,<31", "urllib3>=2.3")

# Linux allows 131,072 bytes for one argument; a tenth is left for what a backend adds.
MAX_SOURCE_BYTES = 118_000

BEGIN = "# kfp-pytorch: the launcher's source begins here"
END = "# kfp-pytorch: the launcher's source ends here"

_HELPER = f"""{BEGIN}
import base64 as _base64
import io as _io
import signal as _signal
import sys as _sys
import tarfile as _tarfile
import tempfile as _tempfile

# As `run_step` does, and it takes over from here: a job of an earlier try may be alive.
_signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM, _signal.SIGINT))
_ARCHIVE = '{{archive}}'
_folder = _tempfile.TemporaryDirectory(prefix='kfp-pytorch-')
with _tarfile.open(fileobj=_io.BytesIO(_base64.b64decode(_ARCHIVE)), mode='r:bz2') as _tar:
    _tar.extractall(_folder.name, filter='data')
_sys.path.insert(0, _folder.name)
{END}
"""


def launcher_component(
    func: Callable[..., Any] | None = None,
    *,
    task_config_passthroughs: Sequence[Any] | None = None,
    packages_to_install: Sequence[str] = PACKAGES,
    base_image: str = BASE_IMAGE,
) -> Any:
    """Makes a KFP component of a function that imports `kfp_pytorch.launcher` in its body.

    It is `kfp.dsl.component` with the launcher's source inside, as much of it as the function
    leads to: the component runs on a stock Python image. `forms.image_form` takes the source out
    again.

    Args:
        func: The function. Left out when used as a decorator with arguments.
        task_config_passthroughs: The task settings that are handed to the component, as
            `kfp.dsl.component` takes them.
        packages_to_install: What pip installs when the step starts, as requirement specifiers.
        base_image: The image of the step: any with Python 3.11.4 or newer and a shell.

    Returns:
        The component, a `kfp.dsl.PythonComponent`; a decorator when `func` is left out.

    Raises:
        ValueError: At import or compile, when the source is too large for one argument.
    """
    if func is None:
        return functools.partial(
            launcher_component,
            task_config_passthroughs=task_config_passthroughs,
            packages_to_install=packages_to_install,
            base_image=base_image,
        )
    component = dsl.component(
        func,
        base_image=base_image,
        packages_to_install=list(packages_to_install),
        task_config_passthroughs=(
            None if task_config_passthroughs is None else list(task_config_passthroughs)
        ),
    )
    command = component.component_spec.implementation.container.command
    command[-1] = with_launcher(command[-1], func.__name__)
    return component


def with_launcher(source: str, function: str) -> str:
    """Puts the launcher's source before a function in a component's source.

    Args:
        source: The component's source as KFP made it: imports, then the function.
        function: The function's name.

    Returns:
        The source with the archive and the lines that unpack it, where KFP puts its own.

    Raises:
        ValueError: When the result is over `MAX_SOURCE_BYTES`, or holds no such function.
    """
    start = source.index(f"\ndef {function}(") + 1
    helper = _HELPER.format(archive=archive_for(source[start:]))
    result = f"{source[:start]}{helper}\n\n{source[start:]}"
    size = len(result.encode())
    if size > MAX_SOURCE_BYTES:
        raise ValueError(
            f"The source of component {function!r} is {size:,} bytes with the launcher's inside; "
            f"the limit is {MAX_SOURCE_BYTES:,}, for Linux takes at most 131,072 in one argument. "
            "Shorten the function, or let its step import less of kfp_pytorch.launcher."
        )
    return result


def without_launcher(source: str) -> str | None:
    """Takes the launcher's source out of a component's source.

    Args:
        source: A component's source, as it stands in a compiled package.

    Returns:
        The source as it was before `with_launcher`; None when there is no launcher in it.
    """
    begin = source.find(f"{BEGIN}\n")
    end = source.find(f"{END}\n\n\n", begin)
    if begin < 0 or end < 0:
        return None
    return source[:begin] + source[end + len(f"{END}\n\n\n") :]
