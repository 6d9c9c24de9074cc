"""A whole pipeline, step by step, as KFP's backend runs it. Conditions and loops are not known."""

from __future__ import annotations

import graphlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.kfp.steps import Ended, Object, Task, Try, Where, drive

RUN_ID = "{{$.pipeline_job_uuid}}"
Attempt = Callable[[Task, int], Ended]


@dataclass
class Run:
    """What became of a pipeline.

    Attributes:
        tries: Each step's tries, in the order in which steps ran.
    """

    tries: dict[str, list[Ended]] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether the last attempt of every step succeeded."""
        return all(tries[-1].code == 0 for tries in self.tries.values())

    @property
    def log(self) -> str:
        """What all steps wrote."""
        return "\n".join(f"== {name}\n{t.log}" for name, ts in self.tries.items() for t in ts)

    def of(self, task: str) -> Ended:
        """A step's last try."""
        return self.tries[task][-1]


def run(package: Object, where: Where, attempt: Attempt | None = None, **arguments: Any) -> Run:
    """Run a pipeline until a step has failed for good, or all have succeeded.

    Args:
        package: Its specification, in image form.
        where: The run.
        attempt: Runs one attempt of a step; by default it is left to run to its end.
        **arguments: The pipeline's arguments; those left out have their defaults.
    """
    root = package["root"]
    tasks = root["dag"]["tasks"]
    declared = root.get("inputDefinitions", {}).get("parameters", {})
    given = {k: d["defaultValue"] for k, d in declared.items() if "defaultValue" in d} | arguments
    order = graphlib.TopologicalSorter({n: t.get("dependentTasks", ()) for n, t in tasks.items()})
    made = Run()
    for name in order.static_order():
        task = _driven(package, name, where, given, made)
        made.tries[name] = _tried(task, tasks[name], where, attempt)
        if made.of(name).code:
            break
    return made


def _driven(package: Object, name: str, where: Where, given: Object, made: Run) -> Task:
    inputs = package["root"]["dag"]["tasks"][name].get("inputs", {})
    parameters = {
        key: _parameter(source, where, given, made)
        for key, source in inputs.get("parameters", {}).items()
    }
    artifacts = {
        key: made.of(s["taskOutputArtifact"]["producerTask"]).artifacts[
            s["taskOutputArtifact"]["outputArtifactKey"]
        ]
        for key, s in inputs.get("artifacts", {}).items()
    }
    return drive(package, name, where, parameters, artifacts)


def _parameter(source: Object, where: Where, given: Object, made: Run) -> Any:
    if "componentInputParameter" in source:
        return given.get(source["componentInputParameter"])
    if "taskOutputParameter" in source:
        output = source["taskOutputParameter"]
        return made.of(output["producerTask"]).parameters[output["outputParameterKey"]]
    constant = source["runtimeValue"]["constant"]
    return where.setting.run_id if constant == RUN_ID else json.loads(json.dumps(constant))


def _tried(task: Task, spec: Object, where: Where, attempt: Attempt | None) -> list[Ended]:
    tries: list[Ended] = []
    for number in range(1 + spec.get("retryPolicy", {}).get("maxRetryCount", 0)):
        ended = attempt(task, number) if attempt else Try(task, where, number).wait()
        tries.append(ended)
        if ended.code == 0:
            break
    return tries
