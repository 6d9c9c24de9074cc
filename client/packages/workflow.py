"""How large the Argo Workflow of a run becomes, which is one object of a limited size.

KFP passes a step on through the nodes of the Workflow. With the retry strategy that KFP 2.17 sets
on every template these are eight for a step: its driver, the step, the executor's group and the
executor, each with one more that retries it. All of them have the step's container, as the spec
has once more, and none is ever removed, so a Workflow is largest at the end of a run.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import click

from kfp_pytorch.client.packages import messages
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.known_tasks import defaults, items_of_loop, known_inputs

# Argo's limit of one Workflow, below that of etcd.
LIMIT = 1 << 20
_LARGEST = 5
# What Argo's compression leaves of the nodes past the limit, in base64. In stored Workflows it is
# 0.08 to 0.16.
_COMPRESSED = 0.16
# Bytes: the templates of every Workflow, of a task in them, of an argument, and of a node.
_TEMPLATES, _TASK, _ARGUMENT, _NODE = 10_000, 1_050, 110, 1_000
# What only the run knows: an output parameter, and the URI and metadata of an artifact.
_UNKNOWN = "x" * 60
_URI, _METADATA = "x" * 170, "x" * 750
# What else a driver asks of the pod of a step.
_POD = "x" * 700

Object = dict[str, Any]


@dataclass
class Estimate:
    """How large the Workflow of a pipeline package becomes, in bytes."""

    parts: dict[str, int] = field(default_factory=dict)  # of each task, component and container
    steps: Counter[str] = field(default_factory=Counter)  # the nodes of all iterations of each
    unknown_loops: set[str] = field(default_factory=set)  # counted once: only the run knows them

    @property
    def spec(self) -> int:
        """All but the nodes."""
        return _TEMPLATES + sum(self.parts.values())

    @property
    def whole(self) -> int:
        """The Workflow at the end of the run, were it never compressed."""
        return self.spec + self.steps.total()

    @property
    def stored(self) -> int:
        """The Workflow at the end of the run, as Argo stores it."""
        compressed = self.spec + round(_COMPRESSED * self.steps.total())
        return self.whole if self.whole <= LIMIT else compressed


def check(package: Package, *, verbose: bool = False) -> None:
    """Refuses a package whose Workflow would not fit, and warns of one that nearly does not.

    `verbose`: whether to print the estimate of one that fits, too.
    """
    found = estimate(package.spec, package.platform)
    name = package.pipeline_name
    largest = ", ".join(f"{step} {size:,}" for step, size in found.steps.most_common(_LARGEST))
    packed = f" ({found.whole:,} before Argo compresses it)" if found.stored != found.whole else ""
    words = f"its Workflow grows to about {found.stored:,} bytes{packed} of {LIMIT:,}"
    if found.stored > LIMIT:
        raise click.ClickException(
            f"{name}: {words}, and no run could end. The largest steps, in bytes: {largest}.\n"
            "Shorten their source and inputs, have fewer iterations or steps in one run, or split "
            "the pipeline in two."
        )
    for loop in sorted(found.unknown_loops):
        click.echo(
            f"Warning: {name}: how often {loop} iterates is known only when it runs; the size of "
            "its Workflow is estimated for one iteration.",
            err=True,
        )
    if verbose:
        click.echo(f"{name}: {words}. The largest steps, in bytes: {largest}.", err=True)
    elif found.stored > LIMIT // 2:
        click.echo(f"Warning: {name}: {words}; --verbose names the largest steps.", err=True)


def estimate(spec: Object, platform: Object) -> Estimate:
    """Computes how large the Workflow of a pipeline package becomes."""
    found = Estimate()
    settings = messages.kubernetes_settings(platform)
    _add_group(found, "root", spec["root"], {})
    _add_tasks(found, spec, settings, spec["root"], defaults(spec["root"], {}), 1)
    return found


def _add_tasks(
    found: Estimate, spec: Object, settings: Object, component: Object, given: Object, times: int
) -> None:
    """Add the tasks of a pipeline, loop or condition that runs so many times."""
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    for key, task in component["dag"].get("tasks", {}).items():
        child = spec["components"][task["componentRef"]["name"]]
        unknown = dict.fromkeys(task.get("inputs", {}).get("parameters", {}), _UNKNOWN)
        inputs = defaults(child, task) | unknown | known_inputs(task, given)
        found.parts[f"task {len(found.parts)}"] = _TASK + _size(_compact(task))
        if "dag" in child:
            _add_group(found, key, child, task, times)
            iterations = times * _iterations(found, key, task, inputs)
            found.steps[key] += 2 * _NODE * iterations
            _add_tasks(found, spec, settings, child, inputs, iterations)
        else:
            label = child["executorLabel"]
            executor = executors.get(label, {})
            container = executor.get("container", executor)
            config = settings.get(label, {})
            for part in (child, container, config):
                found.parts[_compact(part)] = _ARGUMENT + _size(_compact(part))
            found.steps[key] += times * _step(task, child, container, config, inputs)


def _add_group(found: Estimate, key: str, group: Object, task: Object, times: int = 1) -> None:
    """Add the driver of a group of tasks, and the group."""
    found.parts[_compact(group)] = _ARGUMENT + _size(_compact(group))
    both = _size(_compact(group)) + _size(_compact(task))
    found.steps[key] += times * (2 * both + 4 * _NODE)


def _step(
    task: Object, component: Object, container: Object, config: Object, inputs: Object
) -> int:
    """The bytes of the nodes of a step."""
    parts = [_size(_compact(part)) for part in (task, component, container, config)]
    if "image" not in container:
        return 2 * (sum(parts) + _NODE)
    command = [*container.get("command", []), *container.get("args", [])]
    given = [_executor_input(component, task, inputs), _compact(component), *command, _POD]
    patch = _size(_compact({**container, "command": given, "args": []}))
    tries = 1 + max(0, int(task.get("retryPolicy", {}).get("maxRetryCount", 0)))
    annotations = _size(_compact(config))
    return 2 * sum(parts) + (5 + tries) * (patch + annotations) + (7 + tries) * _NODE


def _executor_input(component: Object, task: Object, inputs: Object) -> str:
    """The inputs and outputs of a step, as its driver writes them."""
    outputs = component.get("outputDefinitions", {})
    taken = task.get("inputs", {}).get("artifacts", {})
    made = {name: [of["artifactType"], _URI] for name, of in outputs.get("artifacts", {}).items()}
    value = {
        "inputs": {"parameterValues": inputs, **{name: [_URI, _METADATA] for name in taken}},
        "outputs": {**made, "executor-logs": [_URI], "outputFile": _URI},
        **dict.fromkeys(outputs.get("parameters", {}), _UNKNOWN),
    }
    return _compact(value)


def _iterations(found: Estimate, key: str, task: Object, inputs: Object) -> int:
    items = items_of_loop(task, inputs)
    if items is None and task.keys() & {"parameterIterator", "artifactIterator"}:
        found.unknown_loops.add(key)
    return 1 if items is None else len(items)


def _compact(value: Any) -> str:
    """JSON as Go writes it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _size(text: str) -> int:
    """The bytes of a text within the JSON of a Workflow."""
    return len(json.dumps(text, ensure_ascii=False).encode())
