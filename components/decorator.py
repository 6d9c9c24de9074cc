"""Makes a KFP component of a function that runs a step of the launcher."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

# KFP sets it in a step, where there is no compiler and the function itself is called.
_IN_A_STEP = os.environ.get("_KFP_RUNTIME") == "true"


def launcher_component(
    func: Callable[..., Any] | None = None, *, task_settings: Mapping[str, bool] | None = None
) -> Any:
    """Makes a KFP component of a function of this package.

    The step imports the function from its module: its source does not travel in the pipeline.
    Where the step gets the module from is the pipeline package's form, see `forms`.

    Args:
        func: The function. Left out when used as a decorator with arguments.
        task_settings: The names of the `dsl.TaskConfigField` that are passed to the component as
            its input `task_config`, each with whether the step's own pod gets it too.

    Returns:
        In a step, the function. Elsewhere the component, in configmap form, with caching off.
    """
    if func is None:
        return functools.partial(launcher_component, task_settings=task_settings)
    if _IN_A_STEP:
        return func
    from kfp_pytorch.components.definition import define

    return define(func, task_settings or {})
