"""Finds the pipeline that a person names, and compiles it.

A pipeline is named in three ways: a shipped name, a compiled YAML, or `FILE.py:FUNCTION`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

SHIPPED = "kfp_pytorch.pipelines"
# Where a specification holds values of any shape.
_DOCUMENTS = ("the pipeline", "the platform's part")
_GIVEN = ("constant", "defaultValue", "metadata")
# What YAML takes for the end of a line, or refuses.
_BREAKING = re.compile("[\\x00-\\x08\\n-\\x1f\\x7f-\\x9f\\u2028\\u2029]")


@dataclass(frozen=True)
class Package:
    """A compiled pipeline.

    Attributes:
        name: The name for a file, such as `train_and_serve`.
        header: The comment lines at the head of the YAML.
        spec: The pipeline's specification.
        platform: The platform's specification; empty when there is none.
    """

    name: str
    header: str
    spec: dict[str, Any]
    platform: dict[str, Any]

    @property
    def pipeline_name(self) -> str:
        """The pipeline's own name, as KFP shows it."""
        return str(self.spec["pipelineInfo"]["name"])

    def text(self) -> str:
        """The package as YAML, byte for byte as KFP's compiler writes it."""
        documents = [self.spec, *([self.platform] if self.platform else [])]
        return self.header + yaml.dump_all(documents, sort_keys=True)


def shipped() -> list[str]:
    """Lists the names of the pipelines that come with this project."""
    pipelines = importlib.import_module(SHIPPED)
    return sorted(pipelines.__all__)


def find(what: str) -> list[Package]:
    """Finds the pipelines that one argument names.

    Args:
        what: A shipped name, a compiled YAML, `FILE.py:FUNCTION`, or `FILE.py` for all in it.

    Returns:
        The packages, at least one.

    Raises:
        click.ClickException: When there is no such pipeline; the message lists what there is.
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
    if what not in shipped():
        raise click.ClickException(
            f"There is no pipeline {what!r}. Those that come with kfp-pytorch: "
            f"{', '.join(shipped())}. Your own: a compiled YAML, or FILE.py:FUNCTION."
        )
    return [compile_pipeline(what, getattr(importlib.import_module(SHIPPED), what))]


def find_one(what: str) -> Package:
    """Finds the one pipeline that an argument names.

    Args:
        what: As for `find`.

    Returns:
        The package.

    Raises:
        click.ClickException: When there is none, or more than one.
    """
    packages = find(what)
    if len(packages) > 1:
        choices = ", ".join(f"{what}:{package.name}" for package in packages)
        raise click.ClickException(f"{what} has several pipelines; name one: {choices}.")
    return packages[0]


def compile_pipeline(name: str, pipeline: Any) -> Package:
    """Compiles a pipeline with KFP's own compiler.

    Args:
        name: The name for a file.
        pipeline: What `dsl.pipeline` made.

    Returns:
        The package, in embedded form.

    Raises:
        click.ClickException: When a default would break the YAML that KFP writes, or KFP cannot
            write a constant, such as one that is no finite number.
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
        return parse(target.read_text(encoding="utf-8"), Path(f"{name}.yaml"))


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
    """Reads a compiled package.

    Args:
        text: The YAML.
        path: The file that it came from: it gives the name, and stands in messages.

    Returns:
        The package.

    Raises:
        click.ClickException: When it is not a compiled pipeline.
    """
    lines = text.splitlines(keepends=True)
    length = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise click.ClickException(f"{path} is not YAML: {error}") from None
    spec = documents[0] if documents else None
    if not isinstance(spec, dict) or not {"pipelineInfo", "root"} <= spec.keys():
        raise click.ClickException(
            f"{path} is not a compiled pipeline: it has no pipelineInfo and root. "
            "Compile one with `kfp-pytorch compile FILE.py`."
        )
    platform = documents[1] if len(documents) > 1 else {}
    problem = _problem(spec, platform)
    if problem or not isinstance(platform, dict | None):
        raise click.ClickException(
            f"{path} is not a compiled pipeline: {problem or 'its second document is no mapping'}. "
            "Compile it anew with `kfp-pytorch compile FILE.py`."
        )
    return Package(path.stem, "".join(lines[:length]), spec, platform or {})


def _problem(spec: dict[str, Any], platform: Any) -> str:
    """Says what part of a specification has the wrong shape; nothing when none has."""
    info, components = spec["pipelineInfo"], spec.get("components", {})
    if not isinstance(info, dict) or not isinstance(info.get("name"), str) or not info["name"]:
        return "pipelineInfo has no name"
    executors = spec.get("deploymentSpec", {})
    executors = executors.get("executors", {}) if isinstance(executors, dict) else None
    for what, of in (("components", components), ("deploymentSpec.executors", executors)):
        if not isinstance(of, dict) or not all(isinstance(each, dict) for each in of.values()):
            return f"{what} is no mapping of mappings"
    for where, component in {"root": spec["root"], **components}.items():
        problem = _component_problem(component, components, executors or {})
        if problem:
            return f"{where} {problem}"
    return _misfit(spec, platform) if "dag" in spec["root"] else "root has no dag"


def _misfit(spec: dict[str, Any], platform: Any) -> str:
    """Says what KFP itself would refuse to read; nothing when it reads it all."""
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    null = next(_nulls([spec, platform or {}], ""), "")
    if null:
        return f"{null} is null"
    try:
        json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec(), ignore_unknown_fields=True)
        json_format.ParseDict(
            platform or {}, pipeline_spec_pb2.PlatformSpec(), ignore_unknown_fields=True
        )
    except (json_format.ParseError, TypeError) as error:
        return str(error)
    parameters = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    untyped = [name for name, of in parameters.items() if "parameterType" not in of]
    return f"root has the parameter {untyped[0]}, which has no type" if untyped else ""


def _nulls(value: Any, where: str) -> Iterator[str]:
    """Yields what is null though it is no value that a person gave."""
    if value is None:
        yield where
    items = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else items:
        if key not in _GIVEN:
            yield from _nulls(item, f"{where}.{key}" if where else _DOCUMENTS[key])


def _component_problem(
    component: Any, components: dict[str, Any], executors: dict[str, Any]
) -> str:
    if not isinstance(component, dict):
        return "is no mapping"
    if "dag" not in component:
        label = component.get("executorLabel")
        return f"has the executor {label!r}, which is missing" if label not in executors else ""
    dag = component["dag"]
    tasks = dag.get("tasks") if isinstance(dag, dict) else None
    if not isinstance(tasks, dict) or not tasks:
        return "has no tasks in its dag"
    for name, task in tasks.items():
        reference = task.get("componentRef") if isinstance(task, dict) else None
        component_name = reference.get("name") if isinstance(reference, dict) else None
        if component_name not in components:
            return f"has the task {name}, whose component {component_name!r} is missing"
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"Cannot read {path}: {error}") from None


def _of_file(path: Path) -> dict[str, Any]:
    """Imports a Python file and returns its pipelines by the name of their variable."""
    if not path.is_file():
        raise click.ClickException(f"There is no file {path}.")
    from kfp.dsl.graph_component import GraphComponent

    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise click.ClickException(f"{path} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # A file's own folder comes first, as with `python FILE.py`.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            spec.loader.exec_module(module)
    except Exception as error:
        raise click.ClickException(f"{path} cannot be imported: {_told(error, path)}") from None
    found = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, GraphComponent) and not name.startswith("_")
    }
    own = {name: value for name, value in found.items() if _made_in(value, path)}
    if not found:
        raise click.ClickException(f"{path} has no pipeline: no function under @dsl.pipeline.")
    return own or found


def _told(error: Exception, path: Path) -> str:
    """Says what stopped an import, and at which line of the file itself."""
    ours = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    # A file that is no Python has no line that ran; the exception names the one that is wrong.
    lines = traceback.format_list(ours[-1:]) or traceback.format_exception_only(error)[:-1]
    return f"{type(error).__name__}: {error}\n{''.join(lines)}".rstrip()


def _made_in(pipeline: Any, path: Path) -> bool:
    """Tells whether a pipeline was defined in a file rather than imported into it."""
    return bool(Path(pipeline.pipeline_func.__code__.co_filename).resolve() == path.resolve())
