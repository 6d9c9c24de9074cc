"""What a launcher component is to KFP's compiler."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from kfp import dsl
from kfp.dsl.pipeline_task import PipelineTask, TaskState
from kfp.dsl.python_component import PythonComponent

from kfp_pytorch.components import forms
from kfp_pytorch.components.descriptions import shortened


class LauncherComponent(PythonComponent):  # type: ignore[misc]
    """A component whose tasks have caching off, unless they switch it on again.

    KFP's cache knows a task by its inputs. It does not know what the task does on the cluster, nor
    what an input artifact holds: https://github.com/kubeflow/pipelines/pull/12751
    """

    def __call__(self, *args: Any, **kwargs: Any) -> PipelineTask:
        """Makes a task of the component in a pipeline."""
        task = super().__call__(*args, **kwargs)
        # Called outside of a pipeline, kfp.local has run it by now and lets nothing be set.
        if task.state is TaskState.FUTURE:
            task.set_caching_options(enable_caching=False)
        return task

    @property
    def pipeline_spec(self) -> Any:
        """The component compiled alone."""
        # KFP makes its only task anew.
        spec = super().pipeline_spec
        for task in spec.root.dag.tasks.values():
            task.caching_options.enable_cache = False
        return spec


def define(func: Callable[..., Any], task_settings: Mapping[str, bool]) -> Any:
    """Makes the component of a function, in configmap form; see `decorator`."""
    passthroughs = [
        dsl.TaskConfigPassthrough(getattr(dsl.TaskConfigField, field), apply_to_task=applied)
        for field, applied in task_settings.items()
    ]
    written = func.__doc__
    component = dsl.component(
        shortened(func), base_image=forms.BASE_IMAGE, task_config_passthroughs=passthroughs or None
    )
    func.__doc__ = written
    container = component.component_spec.implementation.container
    container.command = forms.configmap_command(container.command, func.__module__, func.__name__)
    return _with_signature(LauncherComponent(component.component_spec, func))


def _with_signature(component: dsl.PythonComponent) -> dsl.PythonComponent:
    """Has `help(component)` and `inspect.signature(component)` show what the component takes.

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
    about = re.sub("^    task_config: .*\n", "", inspect.getdoc(function) or "", flags=re.MULTILINE)
    component.__doc__ = f"{function.__name__}(\n{lines})\n\n{about}"
    return component


def _plain(annotation: Any) -> Any:
    """Returns the artifact's class for `Input[Model]`, which is an `Annotated` type."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
