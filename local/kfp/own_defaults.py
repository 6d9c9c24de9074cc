"""The default of a parameter of a pipeline within another.

Where no value is given, kfp.local takes the value of the outer pipeline's parameter of that name
(`build_nested_dag_arguments` of kfp.local.orchestrator.task_spec_utils), and fails over a parameter
without a default. The backend takes the default of the inner pipeline, or none:
https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/resolve.go
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kfp_pytorch.local.kfp.task_settings import tasks


def fill_in(spec: dict[str, Any]) -> None:
    """Writes defaults where kfp.local would not find them; None where there is no other."""
    for name, default in _defaults(spec["root"]).items():
        spec["root"]["inputDefinitions"]["parameters"][name]["defaultValue"] = default
    for task, component in tasks(spec):
        for name, default in (_defaults(component) if "dag" in component else {}).items():
            given = task.setdefault("inputs", {}).setdefault("parameters", {})
            given.setdefault(name, {"runtimeValue": {"constant": default}})


def _defaults(component: dict[str, Any]) -> dict[str, Any]:
    definitions = component.get("inputDefinitions", {}).get("parameters", {})
    return {
        name: definition.get("defaultValue")
        for name, definition in definitions.items()
        if definition.get("isOptional") or "defaultValue" in definition
    }


def without_nones(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a step use its default for an argument that is None, as KFP's driver does."""

    def construct_executor_input(*, arguments: dict[str, Any], **keywords: Any) -> Any:
        given = {name: value for name, value in arguments.items() if value is not None}
        return original(arguments=given, **keywords)

    return construct_executor_input
