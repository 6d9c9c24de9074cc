"""Reads a pipeline's parameters as a person types them: `name=value`."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from kfp_pytorch import components
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.components import descriptions, forms
from kfp_pytorch.launcher.text import cut

NO_NONE = (
    "which KFP cannot hand on to a step. Give the parameter a default of its type that stands for "
    "nothing, such as '', 0, [] or {}."
)

# Characters of a default that are shown.
_SHOWN = 200
_PLACEHOLDER = re.compile(r"\{\{\$.*?\}\}", re.DOTALL)
_TRUE = {"true", "yes", "1"}
_FALSE = {"false", "no", "0"}


def parameters(package: Package) -> dict[str, dict[str, Any]]:
    """Returns a pipeline's parameters as its specification defines them, by name.

    Those that KFP fills in itself, such as a `dsl.TaskConfig`, are left out.
    """
    inputs = package.spec["root"].get("inputDefinitions", {})
    known = inputs.get("parameters", {})
    return {name: spec for name, spec in known.items() if spec["parameterType"] in _KINDS}


def typed(package: Package, given: Sequence[str]) -> dict[str, Any]:
    """Turns `name=value` texts, a list or dict in JSON, into typed arguments.

    Raises click.ClickException: a name is unknown or a value has the wrong type.
    """
    result: dict[str, Any] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.ClickException(f"-p {text!r}: write it as name=value.")
        result |= values(package, {name: value})
    return result


def values(package: Package, given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks arguments, and gives them the type that the pipeline takes.

    A text that is given for something else is read as `typed` reads it.
    Raises click.ClickException: a name is unknown or a value has the wrong type.
    """
    known = parameters(package)
    result: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise click.ClickException(
                f"{package.pipeline_name} has no parameter {name!r}.\n{describe(package)}"
            )
        kind = known[name]["parameterType"]
        if kind == "STRING" and not isinstance(value, str):
            raise click.ClickException(
                f"Parameter {name} is a string, and {value!r} is none: put it in quotes."
            )
        text = value if isinstance(value, str) else _as_json(name, value)
        result[name] = _typed(name, text, kind)
    return result


def _as_json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise click.ClickException(f"Parameter {name} cannot be sent as JSON: {error}.") from None


def require(package: Package, arguments: dict[str, Any]) -> None:
    """Checks that every parameter without a default that a step takes has an argument.

    Raises click.ClickException: one is missing, or the pipeline takes an artifact.
    """
    artifacts = package.spec["root"].get("inputDefinitions", {}).get("artifacts", {})
    wanted = [name for name, spec in artifacts.items() if not spec.get("isOptional")]
    if wanted:
        raise click.ClickException(
            f"{package.pipeline_name} takes the artifact {wanted[0]!r}, which no run can be given "
            "by itself: write a pipeline around it that makes the artifact, or imports it with "
            "dsl.importer."
        )
    for name, spec in parameters(package).items():
        optional = "defaultValue" in spec or spec.get("isOptional")
        if name not in arguments and not optional:
            raise click.ClickException(
                f"{package.pipeline_name} needs -p {name}=…\n{describe(package)}"
            )
    without = [name for name in passed_as_none(package) if name not in arguments]
    if without:
        raise click.ClickException(
            f"{package.pipeline_name} needs -p {without[0]}=…: its default is None, {NO_NONE}"
        )


def passed_as_none(package: Package) -> list[str]:
    """Lists the parameters whose default is None and that a step of the pipeline itself takes.

    KFP's driver fails on such a step: https://github.com/kubeflow/pipelines/issues/11667
    (newer ones do not where a nested pipeline takes it). So it does over a condition, a loop or an
    exit handler around the step, none of which has optional inputs.
    """
    components = package.spec.get("components", {})
    taken = {
        source.get("componentInputParameter")
        for task in package.spec["root"].get("dag", {}).get("tasks", {}).values()
        for name, source in task.get("inputs", {}).get("parameters", {}).items()
        if _needs(components[task["componentRef"]["name"]], name)
    }
    return [
        name
        for name, spec in parameters(package).items()
        if name in taken and spec.get("isOptional") and "defaultValue" not in spec
    ]


def _needs(component: dict[str, Any], name: str) -> bool:
    inputs = component.get("inputDefinitions", {}).get("parameters", {})
    return "executorLabel" in component or not inputs.get(name, {}).get("isOptional")


def listed(package: Package) -> list[dict[str, Any]]:
    """Returns a pipeline's parameters for a program, those that must be given first.

    Each has `name`, `type` as a person calls it, `required`, `default`, which is None where there
    is none or it is None, and `description`.
    """
    as_none = passed_as_none(package)
    found = []
    for name, spec in sorted(parameters(package).items()):
        described = spec.get("description") or _of_a_step(package, package.spec["root"], name)
        default = spec.get("defaultValue")
        if default is not None and spec["parameterType"] == "NUMBER_INTEGER":
            # YAML may have read a whole number as 64.0.
            default = int(default)
        optional = "defaultValue" in spec or spec.get("isOptional")
        found.append(
            {
                "name": name,
                "type": _KINDS[spec["parameterType"]][0],
                "required": not optional or name in as_none,
                "default": default,
                "description": " ".join(described.split()),
            }
        )
    return sorted(found, key=lambda each: not each["required"])


def describe(package: Package, width: int = 0) -> str:
    """Lists a pipeline's parameters with type, default and description.

    `width`: columns to wrap them at; 0 for one line each.
    """
    known = listed(package)
    if not known:
        return "It has no parameters."
    lines = [f"  {_head(each)}  {each['description']}".rstrip() for each in known]
    if width:
        wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * 6, break_on_hyphens=False)
        lines = [wrapper.fill(line) for line in lines]
    return "\n".join(["Its parameters:", *lines])


def _head(parameter: dict[str, Any]) -> str:
    default = " (required)"
    if not parameter["required"]:
        written = json.dumps(parameter["default"], ensure_ascii=False)
        default = f" = {cut(written, _SHOWN) if parameter['default'] is not None else 'None'}"
    return f"{parameter['name']}: {parameter['type']}{default}"


def _of_a_step(package: Package, graph: dict[str, Any], name: str) -> str:
    """The description of the step's input that a parameter goes to as it is.

    Empty where there is none. So an author need not describe what a component describes.
    """
    known = package.spec.get("components", {})
    for task in graph.get("dag", {}).get("tasks", {}).values():
        component = known[task["componentRef"]["name"]]
        inputs = component.get("inputDefinitions", {}).get("parameters", {})
        for taken, source in task.get("inputs", {}).get("parameters", {}).items():
            if source.get("componentInputParameter") != name or taken not in inputs:
                continue
            found = (
                inputs[taken].get("description")
                or _of_a_component(package, component).get(taken)
                or _of_a_step(package, component, taken)
            )
            if found:
                return str(found)
    return ""


def _of_a_component(package: Package, component: dict[str, Any]) -> dict[str, str]:
    """The descriptions of a component's inputs, where it is one of this project."""
    executors = package.spec.get("deploymentSpec", {}).get("executors", {})
    container = executors.get(component.get("executorLabel", ""), {}).get("container", {})
    function = forms.function_of(container) if container else ""
    if function not in components.__all__:
        return {}
    return descriptions.of_inputs(getattr(components, function).python_func)


def _integer(text: str) -> int:
    value = text if "." not in text else float(text)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(text)
    return int(value)


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError(text)


def _refuse(constant: str) -> None:
    """NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(constant)


def _json_of(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = json.loads(text, parse_constant=_refuse)
        if not isinstance(value, kind):
            raise ValueError(text)
        return value

    return read


# IR type → its name for a person, how it is read, and an example of how it is written.
_KINDS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "STRING": ("string", str, "text"),
    "NUMBER_INTEGER": ("integer", _integer, "3"),
    "NUMBER_DOUBLE": ("number", float, "0.1"),
    "BOOLEAN": ("boolean", _boolean, "true"),
    "LIST": ("list", _json_of(list), '["a", "b"]'),
    "STRUCT": ("dict", _json_of(dict), '{"a": 1}'),
}


def _leaves(value: Any) -> Iterator[Any]:
    """Yields the values inside a list or dict, at any depth; another value itself."""
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _typed(name: str, text: str, kind: str) -> Any:
    word, read, example = _KINDS[kind]
    try:
        value = read(text)
    except ValueError:
        article = "an" if word[0] in "aeiou" else "a"
        raise click.ClickException(
            f"Parameter {name} is {article} {word}, such as {example}; {text!r} is not."
        ) from None
    for leaf in _leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise click.ClickException(f"Parameter {name} must be finite; {text!r} is not.")
        if leaf is None:
            raise click.ClickException(
                f"Parameter {name} holds null, which KFP hands to no step here. Leave out what is "
                "null, or write '' for an empty string."
            )
    placeholder = _PLACEHOLDER.search(text)
    if placeholder:
        raise click.ClickException(
            f"Parameter {name} holds {placeholder[0]!r}, which KFP takes for a placeholder of its "
            "own wherever it finds one: no step is handed it as it is. Leave it out, or pass the "
            "placeholder from the pipeline's code."
        )
    return value
