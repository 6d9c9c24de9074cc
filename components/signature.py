"""Makes `help(component)` and `inspect.signature(component)` show what the component takes."""

from __future__ import annotations

import inspect
from typing import Any

from kfp import dsl


def with_signature(component: dsl.PythonComponent) -> dsl.PythonComponent:
    """Gives a component the signature and docstring of its function.

    The output artifacts and the task's settings are left out: KFP fills them in.
    """
    function = component.python_func
    taken = {
        name: parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY, annotation=_plain(parameter.annotation)
        )
        for name, parameter in inspect.signature(function).parameters.items()
        if name in component.component_spec.inputs and parameter.annotation is not dsl.TaskConfig
    }
    lines = "".join(f"    {parameter},\n" for parameter in taken.values())
    component.__signature__ = inspect.Signature(list(taken.values()))
    component.__name__ = function.__name__
    component.__doc__ = f"{function.__name__}(\n{lines})\n\n{inspect.getdoc(function)}"
    return component


def _plain(annotation: Any) -> Any:
    """Returns the artifact's class for `Input[Model]`, which is an `Annotated` type."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
