"""Finds names in a pipeline package that refer to nothing, and required parts that are missing.

Every name is looked up before anything runs: KFP would find most of them missing in the middle of
a run.
"""

from __future__ import annotations

import graphlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# The parameters that KFP fills in itself.
_FILLED_IN = {"TASK_CONFIG", "TASK_FINAL_STATUS"}
_KINDS = ("parameters", "artifacts")
# What names an output, and the kind that it then has.
_KEYS = {"outputParameterKey": "parameters", "outputArtifactKey": "artifacts"}
# Of a task that runs after failures too.
_EVEN_AFTER_FAILURES = "ALL_UPSTREAM_TASKS_COMPLETED"
# What the compiler leaves where it finds no value of the run to put.
_CHANNEL = re.compile(r"\{\{channel:task=([^;]*);name=([^;]*);type=.*?;\}\}")
_DEFAULTS: dict[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int, float),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}


@dataclass(frozen=True)
class _Dag:
    """The tasks of one component."""

    where: str  # its place in the package
    component: dict[str, Any]  # the component
    components: dict[str, Any]  # every component by name

    @property
    def tasks(self) -> dict[str, Any]:
        """The tasks by name."""
        found: dict[str, Any] = self.component["dag"].get("tasks", {})
        return found

    def child(self, task: str) -> dict[str, Any]:
        """The component of a task; empty when there is none."""
        reference = self.tasks.get(task, {}).get("componentRef", {}).get("name")
        found: dict[str, Any] = self.components.get(reference, {})
        return found

    def place(self, task: str) -> str:
        """Where a task is."""
        return f"{self.where}.dag.tasks.{task}"


def problem(spec: dict[str, Any]) -> str:
    """Says what is missing in a package, and where; nothing when it is whole.

    `spec`: the pipeline's specification, in which `messages.problem` finds nothing.
    """
    return next(_problems(spec), "")


def _problems(spec: dict[str, Any]) -> Iterator[str]:
    if not spec["pipelineInfo"].get("name"):
        yield "pipelineInfo has no name"
    if "dag" not in spec["root"]:
        yield "root has no dag"
    components = spec.get("components", {})
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    places = {f"components.{name}": component for name, component in components.items()}
    for where, component in {"root": spec["root"], **places}.items():
        yield from _untyped(where, component)
        if "dag" in component:
            yield from _of_dag(_Dag(where, component, components))
        elif component.get("executorLabel") not in executors:
            yield f"{where} has the executor {component.get('executorLabel')!r}, which is missing"
    for label, executor in executors.items():
        yield from _of_executor(f"deploymentSpec.executors.{label}", executor)
    parts: dict[str, Iterable[str]] = {
        name: [task["componentRef"]["name"] for task in of.get("dag", {}).get("tasks", {}).values()]
        for name, of in components.items()
    }
    yield from _cycle("components", parts)


def _untyped(where: str, component: dict[str, Any]) -> Iterator[str]:
    for side in ("inputDefinitions", "outputDefinitions"):
        for kind, key in zip(_KINDS, ("parameterType", "artifactType"), strict=True):
            for name, definition in component.get(side, {}).get(kind, {}).items():
                at = f"{where}.{side}.{kind}.{name}"
                if key not in definition:
                    yield f"{at} has no {key}"
                elif "defaultValue" in definition:
                    yield from _of_default(at, definition)


def _of_default(at: str, definition: dict[str, Any]) -> Iterator[str]:
    kind, value = definition["parameterType"], definition["defaultValue"]
    wanted = _DEFAULTS.get(kind)
    # To Python, True is a number.
    fits = wanted is None or (isinstance(value, wanted) and type(value) in wanted)
    if not fits or (kind == "NUMBER_INTEGER" and value != int(value)):
        yield f"{at}.defaultValue is {value!r}, but its parameterType is {kind}"


def _of_executor(where: str, executor: dict[str, Any]) -> Iterator[str]:
    if not executor:
        yield f"{where} is empty"
    container = executor.get("container", {})
    if "container" in executor and not container.get("image"):
        yield f"{where}.container has no image"
    for index, variable in enumerate(container.get("env", [])):
        if not variable.get("name"):
            yield f"{where}.container.env[{index}] has no name"
        yield from _of_constant(f"{where}.container.env[{index}]", variable.get("value"))
    if "importer" in executor and "artifactUri" not in executor["importer"]:
        yield f"{where}.importer has no artifactUri"


def _of_dag(dag: _Dag) -> Iterator[str]:
    if not dag.tasks:
        yield f"{dag.where} has no tasks in its dag"
    for name, task in dag.tasks.items():
        reference = task.get("componentRef", {}).get("name")
        if reference not in dag.components:
            yield f"{dag.place(name)} has the component {reference!r}, which is missing"
            continue
        for other in task.get("dependentTasks", []):
            if other not in dag.tasks:
                yield f"{dag.place(name)}.dependentTasks names the task {other!r}, which is missing"
        yield from _of_inputs(dag, name)
        yield from _of_iterator(dag, name)
    outputs = dag.component["dag"].get("outputs", {})
    for selector in _selectors(outputs):
        task = selector.get("producerSubtask")
        yield from _of_output(dag, f"{dag.where}.dag.outputs", task, selector)
    after = {name: task.get("dependentTasks", []) for name, task in dag.tasks.items()}
    yield from _cycle(f"{dag.where}.dag.tasks", after)


def _of_inputs(dag: _Dag, task: str) -> Iterator[str]:
    inputs = dag.tasks[task].get("inputs", {})
    yield from _without_default(dag, task)
    for kind in _KINDS:
        for name, source in inputs.get(kind, {}).items():
            at = f"{dag.place(task)}.inputs.{kind}.{name}"
            yield from _of_source(dag, at, kind, source)
        given = inputs.get(kind, {}).keys() | _items(dag.tasks[task])
        declared = dag.child(task).get("inputDefinitions", {}).get(kind, {})
        for name, definition in declared.items():
            needed = not (definition.get("isOptional") or "defaultValue" in definition)
            if needed and name not in given and definition.get("parameterType") not in _FILLED_IN:
                yield f"{dag.place(task)}.inputs.{kind} has no {name}, which its component needs"


def _without_default(dag: _Dag, task: str) -> Iterator[str]:
    """Yields outputs that may never be made, where KFP has no default to put.

    KFP itself refuses those that are an input as a whole.
    """
    if dag.tasks[task].get("triggerPolicy", {}).get("strategy") != _EVEN_AFTER_FAILURES:
        return
    declared = dag.child(task).get("inputDefinitions", {}).get("parameters", {})
    for name, source in dag.tasks[task].get("inputs", {}).get("parameters", {}).items():
        if name not in declared and "taskOutputParameter" in source:
            maker = source["taskOutputParameter"].get("producerTask")
            yield (
                f"{dag.place(task)} has an output of task {maker} within a text, dict or list, and "
                "ignore_upstream_failure(): after a failure of that task KFP has no value to put "
                "there, and would not start the step. Pass the output whole, to an input with a "
                "default"
            )


def _of_source(dag: _Dag, at: str, kind: str, source: dict[str, Any]) -> Iterator[str]:
    """Looks up where an input of a task comes from."""
    above = source.get("componentInputParameter", source.get("componentInputArtifact"))
    made = source.get("taskOutputParameter", source.get("taskOutputArtifact"))
    if above is not None:
        if above not in dag.component.get("inputDefinitions", {}).get(kind, {}):
            yield f"{at} comes from the input {above!r} of {dag.where}, which is missing"
    elif made is not None:
        yield from _of_output(dag, at, made.get("producerTask"), made)
    elif "taskFinalStatus" in source:
        task = source["taskFinalStatus"].get("producerTask")
        if task not in dag.tasks:
            yield f"{at} comes from the task {task!r}, which is missing"
    elif "constant" not in source.get("runtimeValue", {}):
        yield f"{at} has no value"
    else:
        yield from _of_constant(at, source["runtimeValue"]["constant"])


def _of_constant(at: str, constant: Any) -> Iterator[str]:
    found = _CHANNEL.search(json.dumps(constant))
    if found:
        what = f"the output {found[2]!r} of task {found[1]}" if found[1] else repr(found[2])
        yield (
            f"{at} holds {what} where KFP puts no value, and the step would get a placeholder. A "
            "key of a dict and an environment variable of a task take constants only, and no text "
            "takes an artifact: give that to an input for artifacts, or have its task return its "
            "URI as an output of type str"
        )


def _of_output(dag: _Dag, at: str, task: Any, made: dict[str, Any]) -> Iterator[str]:
    if task not in dag.tasks:
        yield f"{at} comes from the task {task!r}, which is missing"
        return
    named = [(made[key], kind) for key, kind in _KEYS.items() if key in made]
    outputs = dag.child(task).get("outputDefinitions", {})
    if any(key in outputs.get(kind, {}) for key, kind in named):
        return
    key, wanted = named[0] if named else (None, "")
    what = f"{at} comes from the output {key!r} of task {task}"
    if wanted == "parameters" and key in outputs.get("artifacts", {}):
        yield (
            f"{what}, which is an artifact, and KFP would hand on no value. Give it to an input "
            "for artifacts, or have the task return its URI as an output of type str"
        )
    else:
        yield f"{what}, which is missing"


def _iterators(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [task[name] for name in ("parameterIterator", "artifactIterator") if name in task]


def _items(task: dict[str, Any]) -> set[str]:
    """The inputs of a task that a loop gives it."""
    return {iterator["itemInput"] for iterator in _iterators(task) if "itemInput" in iterator}


def _of_iterator(dag: _Dag, task: str) -> Iterator[str]:
    for iterator in _iterators(dag.tasks[task]):
        items = iterator.get("items", {})
        given = dag.tasks[task].get("inputs", {})
        source = items.get("inputParameter", items.get("inputArtifact"))
        if not iterator.get("itemInput"):
            yield f"{dag.place(task)} is a loop without an itemInput"
        if "raw" in items:
            if not _is_list(items["raw"]):
                yield f"{dag.place(task)} is a loop over {items['raw']!r}, which is no JSON list"
        elif not any(source in given.get(kind, {}) for kind in _KINDS):
            yield f"{dag.place(task)} is a loop over its input {source!r}, which is missing"


def _is_list(raw: str) -> bool:
    try:
        return isinstance(json.loads(raw), list)
    except ValueError:
        return False


def _selectors(outputs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what an output of a dag is taken from."""
    for parameter in outputs.get("parameters", {}).values():
        yield from parameter.get("valueFromOneof", {}).get("parameterSelectors", [])
        if "valueFromOneof" not in parameter:
            yield parameter.get("valueFromParameter", {})
    for artifact in outputs.get("artifacts", {}).values():
        yield from artifact.get("artifactSelectors", [])


def _cycle(where: str, graph: dict[str, Iterable[str]]) -> Iterator[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield f"{where} go round in a circle: {', '.join(error.args[1])}"
