"""Puts the launcher's source into a component, so that a compiled package needs no image of ours.

KFP can do so itself (`embedded_artifact_path`), but its archive carries times, owners and modes,
so two compiles of the same tree differ. The archive here depends on the source's bytes alone.
"""

from __future__ import annotations

import ast
import base64
import bz2
import functools
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kfp import dsl

import kfp_pytorch

BASE_IMAGE = "python:3.12-slim"
# What the launcher imports beyond the standard library. KFP installs itself with `--no-deps`.
PACKAGES = ("kubernetes>=30.1,<31",)

# Linux allows 131,072 bytes for one argument; the rest is left for what a backend adds.
MAX_SOURCE_BYTES = 100_000

BEGIN = "# kfp-pytorch: the launcher's source begins here"
END = "# kfp-pytorch: the launcher's source ends here"

_HELPER = f"""{BEGIN}
import base64 as _base64
import io as _io
import sys as _sys
import tarfile as _tarfile
import tempfile as _tempfile

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

    It is `kfp.dsl.component` with the launcher's source inside: the component runs on a stock
    Python image. `kfp_pytorch.components.forms.image_form` takes the source out again.

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
    archive = base64.b64encode(launcher_archive(function)).decode("ascii")
    helper = _HELPER.format(archive=archive)
    result = f"{source[:start]}{helper}\n\n{source[start:]}"
    size = len(result.encode())
    if size > MAX_SOURCE_BYTES:
        raise ValueError(
            f"The source of component {function!r} is {size:,} bytes with the launcher's inside; "
            f"the limit is {MAX_SOURCE_BYTES:,}, for Linux takes at most 131,072 in one argument. "
            "Shorten kfp_pytorch/launcher (or the function), or move what only the training "
            "container or the author needs out of it."
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


@functools.cache
def launcher_archive(function: str = "") -> bytes:
    """Packs `kfp_pytorch/__init__.py` and what a component needs of the launcher into an archive.

    The bytes depend on the files' names and contents alone. They are bzip2, not gzip: zlib's
    output differs between builds (zlib-ng, hardware deflate) while bzip2's format leaves its one
    encoder no choice that varied since 1.0, and it is smaller for this much text.

    Args:
        function: The component's function. Where the launcher has a step of that name, only the
            modules that it imports are packed; else all are.

    Returns:
        A tar archive, compressed.
    """
    package = Path(kfp_pytorch.__file__).parent
    # `kfp_pytorch/launcher` is a link in an editable install.
    launcher = (package / "launcher").resolve()
    files = {"kfp_pytorch/__init__.py": package / "__init__.py"}
    for path in modules_of_step(launcher, function):
        files[f"kfp_pytorch/launcher/{path.relative_to(launcher).as_posix()}"] = path
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            content = files[name].read_bytes()
            # A TarInfo of our own has time 0, owner 0 and no owner's name.
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(content))
    return bz2.compress(buffer.getvalue(), compresslevel=9)


def modules_of_step(launcher: Path, step: str) -> list[Path]:
    """Finds the modules that a step of the launcher needs, by their import statements.

    Args:
        launcher: The launcher's folder.
        step: The step's name.

    Returns:
        The modules' files; all of the launcher's where it has no such step.
    """
    if not (launcher / "steps" / f"{step}.py").is_file():
        return sorted(launcher.rglob("*.py"))
    # `run_step` imports the step by name.
    found, left = set[Path](), ["__init__", "runner", "steps.__init__", f"steps.{step}"]
    while left:
        path = launcher / f"{left.pop().replace('.', '/')}.py"
        if path not in found and path.is_file():
            found.add(path)
            left += _imported(path)
    return sorted(found)


def _imported(path: Path) -> Iterator[str]:
    """The modules of the launcher that a file imports, in functions too."""
    prefix = "kfp_pytorch.launcher"
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name[len(prefix) + 1 :] for name in names if name.startswith(f"{prefix}."))
