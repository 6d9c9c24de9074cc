"""Finds the pipeline that a person names, and compiles it.

A pipeline is named in three ways: a shipped name, a compiled YAML, or `FILE.py:FUNCTION`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from kfp_pytorch.client.packages import signatures

SHIPPED = "kfp_pytorch.pipelines"
# What YAML takes for the end of a line, or refuses.
_BREAKING = re.compile("[\\x00-\\x08\\n-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
# How KFP's compiler, or the check of what it wrote, says that it lost the item of a loop.
_LOST_ITEM = re.compile(r"from the input '[^']*loop-item|loop-item\S* not found")


@dataclass(frozen=True)
class Package:
    """A pipeline package: a compiled pipeline."""

    name: str  # the name for a file, such as `train_and_serve`
    header: str  # the comment lines at the head of the YAML
    spec: dict[str, Any]  # the pipeline's specification
    platform: dict[str, Any]  # the platform's specification; empty when there is none

    @property
    def pipeline_name(self) -> str:
        """The pipeline's own name, as KFP shows it."""
        return str(self.spec["pipelineInfo"]["name"])

    def text(self) -> str:
        """The pipeline package as YAML, as KFP's compiler writes it."""
        documents = [self.spec, *([self.platform] if self.platform else [])]
        return self.header + yaml.dump_all(documents, sort_keys=True)


def shipped() -> list[str]:
    """Lists the names of the pipelines that come with this project."""
    pipelines = importlib.import_module(SHIPPED)
    return sorted(pipelines.__all__)


def find(what: str) -> list[Package]:
    """Finds the pipelines, at least one, that one argument names.

    `FILE.py` stands for all in it. Raises click.ClickException: there is no such pipeline.
    """
    path, _, function = what.partition(":")
    if path.endswith((".yaml", ".yml")):
        return [parse(_read(Path(path)), Path(path))]
    if path.endswith(".py"):
        found = _of_file(Path(path))
        if function and function not in found:
            raise click.ClickException(
                f"{path} has no pipeline {function!r}. It has: {', '.join(sorted(found))}."
            )
        names = [function] if function else sorted(found)
        return [compile_pipeline(name, found[name]) for name in names]
    if what not in shipped() and Path(path).is_file():
        raise click.ClickException(
            f"{path} is neither a compiled pipeline, NAME.yaml, nor a FILE.py, by its name."
        )
    if what not in shipped():
        raise click.ClickException(
            f"There is no pipeline {what!r}. Those that come with kfp-pytorch: "
            f"{', '.join(shipped())}. Your own: a compiled YAML, or FILE.py:FUNCTION."
        )
    return [compile_pipeline(what, getattr(importlib.import_module(SHIPPED), what))]


def find_one(what: str) -> Package:
    """Finds the one pipeline that an argument names, as `find` does.

    Raises click.ClickException: there is none, or more than one.
    """
    packages = find(what)
    if len(packages) > 1:
        choices = ", ".join(f"{what}:{package.name}" for package in packages)
        raise click.ClickException(f"{what} has several pipelines; name one: {choices}.")
    return packages[0]


def compile_pipeline(name: str, pipeline: Any) -> Package:
    """Compiles a pipeline that `dsl.pipeline` made with KFP's own compiler.

    The same pipeline gives the same package, byte for byte.

    Raises click.ClickException: a default would break the YAML that KFP writes, KFP cannot write a
    constant, such as one that is no finite number, or what it writes cannot run.
    """
    from kfp import compiler

    _check_header(pipeline)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "package.yaml"
        try:
            compiler.Compiler().compile(pipeline, str(target))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise click.ClickException(f"KFP cannot compile {pipeline.name}: {words}") from None
        text = target.read_text(encoding="utf-8")
    package, problem = _parsed(text, Path(f"{name}.yaml"))
    if problem:
        raise click.ClickException(
            f"KFP compiles {pipeline.name} to a pipeline package that cannot run: {problem}."
            f"{_lost_item(problem)}"
        )
    return replace(package, header=_header(package.spec, pipeline.description))


def _header(spec: dict[str, Any], description: str | None) -> str:
    """Writes the comment lines at the head of a package, from its specification as read from YAML.

    KFP writes them from protobuf's maps, so that the keys of a default that is a dict are in an
    order that changes with each process. In the YAML they are sorted.
    """
    from kfp.compiler import pipeline_spec_builder

    return str(pipeline_spec_builder.extract_comments_from_pipeline_spec(spec, description))


def _check_header(pipeline: Any) -> None:
    # KFP puts defaults as they are into comment lines at the head of the YAML.
    for name, spec in (pipeline.component_spec.inputs or {}).items():
        if isinstance(spec.default, str) and _BREAKING.search(spec.default):
            raise click.ClickException(
                f"{pipeline.name}: the default of parameter {name} is {spec.default!r}; KFP cannot "
                "write a line break or control character in a default. Give it with the run "
                f"instead (-p {name}=…), or build it in a step."
            )


def parse(text: str, path: Path) -> Package:
    """Reads a pipeline package; `path`, the file that it came from, gives its name.

    Raises click.ClickException: it is not a compiled pipeline, or a damaged one: one that KFP could
    not read, or in which something is missing.
    """
    package, problem = _parsed(text, path)
    if problem:
        raise _damaged(path, problem)
    return package


def _parsed(text: str, path: Path) -> tuple[Package, str]:
    """Reads a pipeline package, and says what is wrong with it; nothing when it is whole."""
    from kfp_pytorch.client.packages import messages, references

    lines = text.splitlines(keepends=True)
    length = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    try:
        documents = list(yaml.safe_load_all(text))
    # What PyYAML makes values of raises much else, such as ValueError over the date 2025-13-01.
    except Exception as error:
        raise _damaged(path, f"it cannot be read as YAML: {_yaml_words(error)}") from None
    spec, platform = [*documents, None, None][:2]
    if not isinstance(spec, dict) or not spec.keys() & {"pipelineInfo", "root"}:
        raise _no_package(path, "it has no pipelineInfo and root")
    platform = {} if platform is None else platform
    missing = [part for part in ("pipelineInfo", "root") if part not in spec]
    if len(documents) > 2:
        problem = f"it has {len(documents)} YAML documents, where one or two belong"
    elif missing:
        problem = f"it has no {missing[0]}"
    else:
        problem = messages.problem(spec, platform) or references.problem(spec)
    return Package(path.stem, "".join(lines[:length]), spec, platform), problem


def _yaml_words(error: Exception) -> str:
    """Says on one line what PyYAML says on several, with the lines of the file."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    at = getattr(error, "problem_mark", None)
    if isinstance(error, yaml.MarkedYAMLError) and at:
        words = ": ".join(filter(None, (error.context, error.problem)))
        return f"{words} (line {at.line + 1}, column {at.column + 1})"
    return str(error).partition("\n")[0]


def _no_package(path: Path, why: str) -> click.ClickException:
    return click.ClickException(
        f"{path} is not a compiled pipeline: {why}. Compile one with `kfp-pytorch compile FILE.py`."
    )


def _damaged(path: Path, problem: str) -> click.ClickException:
    lost = _lost_item(problem)
    if lost:
        return click.ClickException(f"{path} cannot run: {problem}.{lost}")
    return click.ClickException(
        f"{path} is damaged: {problem}.\n"
        f"Compile it again: `kfp-pytorch compile PIPELINE --output {path}`, where PIPELINE is "
        "FILE.py:FUNCTION or the name of one that comes with kfp-pytorch."
    )


def _lost_item(problem: str) -> str:
    """Says what to do where KFP's compiler does not pass the item of a loop on.

    https://github.com/kubeflow/pipelines/issues/13273
    """
    if not _LOST_ITEM.search(problem):
        return ""
    return (
        "\nKFP's compiler loses the item of a loop that is put into a text, as in "
        'f"run-{item}", or taken apart, as in item.a, within a further loop, condition or exit '
        "handler. A part of it, such as item.a, it loses in any text and any list. Pass the whole "
        "item as an input, or, directly within its loop, item.a; or pass it to a pipeline of "
        "its own (@dsl.pipeline) that holds what is within the loop."
    )


def _read(path: Path) -> str:
    try:
        # Editors on Windows write a byte order mark, before which no comment would be found.
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise click.ClickException(
            f"Cannot read {path}: {error.strerror or error}. Name a compiled pipeline; "
            "`kfp-pytorch compile PIPELINE --output FILE.yaml` writes one."
        ) from None
    except UnicodeDecodeError:
        raise _no_package(path, "it is no text in UTF-8") from None


def _of_file(path: Path) -> dict[str, Any]:
    """Imports a Python file and returns its pipelines by the name of their variable."""
    if not path.is_file():
        raise click.ClickException(f"There is no file {path}.")
    from kfp.dsl.graph_component import GraphComponent

    # Not its own name: a file may be called kfp.py.
    name = f"{__name__}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise click.ClickException(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with (
            warnings.catch_warnings(),
            _neighbours_first(path.resolve().parent),
            signatures.evaluated(),
        ):
            warnings.simplefilter("ignore", FutureWarning)
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        cause = _cause(error, path)
        raise click.ClickException(
            f"{path} cannot be imported: {cause}{_lost_item(cause)}"
        ) from None
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, GraphComponent) and not name.startswith("_")
    }
    own = {name: value for name, value in found.items() if _made_in(value, path)}
    if not found:
        raise click.ClickException(f"{path} has no pipeline: no function under @dsl.pipeline.")
    return own or found


@contextlib.contextmanager
def _neighbours_first(folder: Path) -> Iterator[None]:
    """Has imports look into a folder first, as with `python FILE.py`, within this block alone.

    The next file may have neighbours of the same names, and one may be called kubernetes.py.
    """
    before = set(sys.modules)
    # Python takes the bytecode of a file of the same size and second for that of this one.
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        new = sys.modules.keys() - before
        neighbours = {name for name in new if _folder_of(sys.modules[name]) == folder}
        for name in new:
            if name.partition(".")[0] in neighbours:
                del sys.modules[name]


def _folder_of(module: Any) -> Path:
    """The folder from which a module or package is imported, if it is not within a package."""
    file = Path(getattr(module, "__file__", None) or "/")
    return file.parent.parent if file.stem == "__init__" else file.parent


def _cause(error: BaseException, path: Path) -> str:
    """Returns the exception that stopped an import, with the line of the file."""
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    # A file that is no Python has no line that ran; the exception names the one that is wrong.
    lines = traceback.format_list(ours[-1:]) or traceback.format_exception_only(error)[:-1]
    return f"{type(error).__name__}: {error}\n{''.join(lines)}".rstrip()


def _made_in(pipeline: Any, path: Path) -> bool:
    """Whether a pipeline was defined in a file rather than imported into it."""
    return bool(Path(pipeline.pipeline_func.__code__.co_filename).resolve() == path.resolve())
