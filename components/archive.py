"""The part of the launcher that one component needs, as an archive.

The bytes depend on the source alone: not on times, owners, modes, the order of a folder, the
Python that packs, nor its zlib.
"""

from __future__ import annotations

import ast
import base64
import bz2
import functools
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

import kfp_pytorch

_PACKAGE = "kfp_pytorch"
_LAUNCHER = f"{_PACKAGE}.launcher"
_RUN_STEP = "run_step"
_WITH_DOCSTRING = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def archive_for(function_source: str) -> str:
    """Packs the modules that a component's function leads to.

    Those are what the function imports of `kfp_pytorch.launcher`, the step that it names in a
    call of `run_step`, and whatever these import in turn. Docstrings are left out, for they are a
    third of the size; every line keeps its number, so that a traceback fits the source.

    bzip2, not gzip: zlib's output differs between its builds (zlib-ng, hardware deflate), while
    bzip2 has one encoder whose output has been the same since 1.0; and it is smaller here.

    Args:
        function_source: The source of the function.

    Returns:
        A bzip2-compressed tar archive, in base64.
    """
    modules = _modules()
    wanted = _closure(modules, _roots(function_source, modules))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(wanted):
            path = modules[name]
            content = _read(path).blanked.encode()
            # A TarInfo of our own has time 0, owner 0 and no owner's name.
            info = tarfile.TarInfo(_inside(name, path))
            info.size = len(content)
            info.mode = 0o644
            tar.addfile(info, io.BytesIO(content))
    return base64.b64encode(bz2.compress(buffer.getvalue(), compresslevel=9)).decode("ascii")


@dataclass(frozen=True)
class _Source:
    """A module's source without its docstrings, and all that it imports, by dotted name."""

    blanked: str
    imported: frozenset[str]


def without_docstrings(source: str) -> str:
    """Blanks the docstrings of a module, and keeps the number of every line.

    Args:
        source: The module's source.

    Returns:
        Source that does the same, as long as nothing in it reads `__doc__`.
    """
    return _parse(source).blanked


@functools.cache
def _read(path: Path) -> _Source:
    # Most modules go into several components, and to parse one takes some milliseconds.
    return _parse(path.read_text(encoding="utf-8"))


def _parse(source: str) -> _Source:
    lines = source.split("\n")
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= _names(node)
        elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            first, last = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
            # An empty string stays: it may be all that the body has.
            lines[first:last] = [" " * docstring.col_offset + '""', *[""] * (last - first - 1)]
    return _Source("\n".join(lines), frozenset(imported))


def _names(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}


def _modules() -> dict[str, Path]:
    """Every module of the launcher and the package itself, by dotted name."""
    package = Path(kfp_pytorch.__file__).parent
    # `kfp_pytorch/launcher` is a link in an editable install.
    launcher = (package / "launcher").resolve()
    found = {_PACKAGE: package / "__init__.py"}
    for path in launcher.rglob("*.py"):
        parts = path.relative_to(launcher).with_suffix("").parts
        found[".".join([_LAUNCHER, *parts]).removesuffix(".__init__")] = path
    return found


def _inside(name: str, path: Path) -> str:
    stem = name.replace(".", "/")
    return f"{stem}/__init__.py" if path.name == "__init__.py" else f"{stem}.py"


def _roots(function_source: str, modules: dict[str, Path]) -> set[str]:
    found = {_LAUNCHER, *(_parse(function_source).imported & modules.keys())}
    for node in ast.walk(ast.parse(function_source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == _RUN_STEP:
            step = ast.literal_eval(node.args[0])
            if f"{_LAUNCHER}.steps.{step}" not in modules:
                raise ValueError(f"There is no step {step!r}: no launcher/steps/{step}.py.")
            found.add(f"{_LAUNCHER}.steps.{step}")
    return found


def _closure(modules: dict[str, Path], roots: set[str]) -> set[str]:
    wanted: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            # A module cannot be imported without the packages that it is in.
            todo += [name.rpartition(".")[0]] if name != _PACKAGE else []
            todo += _read(modules[name]).imported & modules.keys()
    return wanted
