"""What is known of a task's inputs before anything runs.

In a pipeline package, an input of a task is a constant, a parameter of the pipeline (which has a
default, or an argument when a run is about to start), or something that only the run knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kfp_pytorch.client.packages import messages
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.components import forms
from kfp_pytorch.local.kfp import conditions, placeholders, task_settings

_WHOLE = re.compile(r"\{\{\$[^{}]*\}\}")
# Placeholders of the run: https://github.com/kubeflow/pipelines/tree/master/backend/src/v2/driver
_OF_THE_RUN = re.compile(r"\{\{\$\.(?:pipeline_(?:job|task|root)\w*|workspace_path)\}\}")
_WORKSPACE = "{{$.workspace_path}}"
SELECTOR = re.compile(r'parseJson\(string_value\)\["([^"]+)"\]')
_UNKNOWN = object()
# What KnownTask.function says of a task that imports an artifact.
IMPORTER = "importer"


@dataclass(frozen=True)
class KnownTask:
    """A task of a pipeline package with those of its inputs that are known."""

    name: str
    # The step of the launcher that it runs, such as `pytorch_job`; `IMPORTER` when it imports an
    # artifact, whose metadata then is an input too; empty when it is none of these.
    function: str
    inputs: dict[str, Any]  # the known ones, those left at the component's default included
    unknown: frozenset[str]  # the inputs that only the run knows
    # Parameters that KFP fills in as text inside JSON, where the text would break it.
    unsafe: dict[str, str]
    label: str  # of its executor
    certain: bool  # whether it is known that no condition keeps it from running
    artifacts: frozenset[str] = frozenset()  # the input artifacts that it is given
    sources: dict[str, KnownTask] = field(default_factory=dict)  # whose output an input is, by name


def known_tasks(package: Package, arguments: dict[str, Any]) -> Iterator[KnownTask]:
    """Yields the tasks, nested ones included, that run a container or import an artifact.

    `arguments`: those of the run that is to start; empty when there is none.
    """
    kubernetes = messages.kubernetes_settings(package.platform)
    known = defaults(package.spec["root"], {}) | arguments
    spec = task_settings.with_task_configs(package.spec, kubernetes, known)
    yield from _walk(spec, spec["root"], known, certain=True)


def _walk(
    spec: dict[str, Any], component: dict[str, Any], known: dict[str, Any], *, certain: bool
) -> Iterator[KnownTask]:
    found: dict[str, KnownTask] = {}
    tasks = component.get("dag", {}).get("tasks", {})
    for key, task in tasks.items():
        child = spec["components"][task["componentRef"]["name"]]
        inputs = known_inputs(task, known)
        if "dag" in child:
            inputs = defaults(child, task) | inputs
            # The defaults of a pipeline need not suit a branch that does not run with them.
            does = runs(task, inputs)
            for iteration in iterations(task, inputs if does else {}):
                yield from _walk(spec, child, iteration, certain=certain and does)
            continue
        executor = (
            spec.get("deploymentSpec", {}).get("executors", {}).get(child["executorLabel"], {})
        )
        if "container" in executor:
            function = forms.function_of(executor["container"])
            wanted = list(child.get("inputDefinitions", {}).get("parameters", {}))
            given = task.get("inputs", {}).get("parameters", {}).keys()
        elif "importer" in executor:
            metadata = _filled(executor["importer"].get("metadata", {}), inputs)
            inputs = inputs if metadata is _UNKNOWN else inputs | {"metadata": metadata}
            function, wanted = IMPORTER, ["uri", "metadata"]
            given = wanted
        else:
            continue
        values = defaults(child, task) | {name: inputs[name] for name in wanted if name in inputs}
        unknown = frozenset(name for name in wanted if name in given and name not in inputs)
        unsafe = _unsafe(task, inputs)
        does = certain and runs(task, inputs)
        label = child["executorLabel"]
        found[key] = KnownTask(key, function, values, unknown, unsafe, label, does)
    for key, one in found.items():
        given = tasks[key].get("inputs", {})
        artifacts, parameters = given.get("artifacts", {}), given.get("parameters", {})
        makers = {name: maker(source) for name, source in {**parameters, **artifacts}.items()}
        sources = {name: found[maker] for name, maker in makers.items() if maker in found}
        yield replace(one, artifacts=frozenset(artifacts), sources=sources)


def maker(source: dict[str, Any]) -> str:
    """Returns the task whose output an input is; empty where it is none of a task."""
    made = source.get("taskOutputArtifact") or source.get("taskOutputParameter") or {}
    return str(made.get("producerTask", ""))


def runs(task: dict[str, Any], inputs: dict[str, Any]) -> bool:
    """Whether a group of tasks is known to run: its condition, if it has one, holds."""
    condition = task.get("triggerPolicy", {}).get("condition", "")
    try:
        return conditions.holds(condition, inputs.get)
    # What a person wrote in a YAML file may be no condition at all.
    except Exception:
        return False


def defaults(component: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """Returns the defaults of those parameters of a component that its task is not given."""
    given = task.get("inputs", {}).get("parameters", {})
    declared = component.get("inputDefinitions", {}).get("parameters", {})
    return {
        name: definition["defaultValue"]
        for name, definition in declared.items()
        if "defaultValue" in definition and name not in given
    }


def items_of_loop(task: dict[str, Any], inputs: dict[str, Any]) -> list[Any] | None:
    """Returns what a task iterates over; None where that is not known, or it is no loop."""
    source = task.get("parameterIterator", {}).get("items", {})
    raw = json.loads(source["raw"]) if "raw" in source else None
    items = inputs.get(source.get("inputParameter"), raw)
    return items if isinstance(items, list) else None


def iterations(task: dict[str, Any], inputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the known inputs of a group of tasks, for each iteration where it is a loop."""
    items = items_of_loop(task, inputs)
    for item in [_UNKNOWN] if items is None else items:
        value = _filled(item, inputs)
        known = {} if value is _UNKNOWN else {task["parameterIterator"]["itemInput"]: value}
        yield inputs | known


def known_inputs(task: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a task whose values are known, from the parameters around it."""
    parameters = task.get("inputs", {}).get("parameters", {})
    direct: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for name, source in parameters.items():
        if "runtimeValue" in source:
            constants[name] = source["runtimeValue"].get("constant")
        elif source.get("componentInputParameter") in known:
            value = known[source["componentInputParameter"]]
            direct[name] = _part(value, source.get("parameterExpressionSelector", ""))
            if direct[name] is _UNKNOWN:
                del direct[name]
    for name, constant in constants.items():
        value = _UNKNOWN if _is_filled_in_later(constant) else _filled(constant, direct)
        if value is not _UNKNOWN:
            direct[name] = value
    return direct


def _is_filled_in_later(constant: Any) -> bool:
    """Whether KFP fills in a value of the run: only for the whole value of an argument."""
    if not isinstance(constant, str):
        return False
    whole = _WHOLE.fullmatch(constant) and not placeholders.REFERENCE.fullmatch(constant)
    return bool(whole) or _WORKSPACE in constant


def left_literal(inputs: dict[str, Any]) -> dict[str, str]:
    """Finds placeholders of the run that a cluster does not fill in, though kfp.local does.

    Returns the first placeholder of each input that has one, by the input's name.
    """
    found = {name: _OF_THE_RUN.search(json.dumps(value)) for name, value in inputs.items()}
    return {name: match[0] for name, match in found.items() if match}


def _part(value: Any, selector: str) -> Any:
    """Returns the part of a loop's item that a selector names; `_UNKNOWN` when it has none."""
    if not selector:
        return value
    key = SELECTOR.fullmatch(selector)
    if key is None or not isinstance(value, dict):
        return _UNKNOWN
    return value.get(key[1], _UNKNOWN)


def _filled(value: Any, known: dict[str, Any]) -> Any:
    """Fills parameters into a constant, as KFP will; `_UNKNOWN` when one is not known."""
    if isinstance(value, dict):
        filled = {key: _filled(item, known) for key, item in value.items()}
        return _UNKNOWN if _UNKNOWN in filled.values() else filled
    if isinstance(value, list):
        items = [_filled(item, known) for item in value]
        return _UNKNOWN if _UNKNOWN in items else items
    if not isinstance(value, str) or "{{$" not in value:
        return value
    if any(name not in known for name in placeholders.REFERENCE.findall(value)):
        return _UNKNOWN
    return placeholders.REFERENCE.sub(lambda match: placeholders.as_text(known[match[1]]), value)


def _unsafe(task: dict[str, Any], inputs: dict[str, Any]) -> dict[str, str]:
    parameters = task.get("inputs", {}).get("parameters", {})
    inside = set(placeholders.REFERENCE.findall(json.dumps(parameters)))
    found = {}
    for name in inside & inputs.keys():
        # A list or dict inside JSON text has quotes of its own.
        text = placeholders.as_text(inputs[name])
        if placeholders.is_unsafe(text):
            found[parameters[name].get("componentInputParameter", name)] = text
    return found
