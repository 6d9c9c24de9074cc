"""What a launcher component is to KFP's compiler."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from kfp import dsl
from kfp.dsl.pipeline_task import PipelineTask, TaskState
from kfp.dsl.python_component import PythonComponent

from kfp_pytorch.components import arguments, forms
from kfp_pytorch.components.descriptions import without_sections
from kfp_pytorch.launcher.errors import InputError


class LauncherComponent(PythonComponent):  # type: ignore[misc]
    """A component that takes arguments as people write them, and whose tasks have caching off.

    A task may switch caching on again. KFP's cache knows a task by its inputs. It does not know
    what the task does on the cluster, nor what an input artifact holds:
    https://github.com/kubeflow/pipelines/pull/12751
    """

    def __call__(self, *args: Any, **kwargs: Any) -> PipelineTask:
        """Makes a task of the component in a pipeline.

        Raises TypeError: an argument cannot be what its input takes.
        """
        try:
            taken = arguments.taken(self.component_spec.inputs or {}, kwargs)
        except InputError as error:
            raise TypeError(f"{self.name}: {error.message}") from None
        task = super().__call__(*args, **taken)
        # Called outside of a pipeline, kfp.local has run it by now and lets nothing be set.
        if task.state is TaskState.FUTURE:
            task.set_caching_options(enable_caching=False)
        return task

    @property
    def pipeline_spec(self) -> Any:
        """The component compiled alone, as a pipeline that takes its parameters.

        No run can be given an artifact by itself, and KFP's driver fails over an optional one that
        is passed on and not given.
        """
        # KFP makes its only task anew.
        spec = super().pipeline_spec
        taken = spec.root.input_definitions.artifacts
        optional = [name for name, artifact in taken.items() if artifact.is_optional]
        for task in spec.root.dag.tasks.values():
            task.caching_options.enable_cache = False
            for name in optional:
                del task.inputs.artifacts[name]
        for name in optional:
            del taken[name]
        return spec


def define(func: Callable[..., Any], task_settings: Mapping[str, bool]) -> Any:
    """Makes the component of a function, in configmap form; see `decorator`."""
    passthroughs = [
        dsl.TaskConfigPassthrough(getattr(dsl.TaskConfigField, field), apply_to_task=applied)
        for field, applied in task_settings.items()
    ]
    written = func.__doc__
    component = dsl.component(
        without_sections(func),
        base_image=forms.BASE_IMAGE,
        task_config_passthroughs=passthroughs or None,
    )
    func.__doc__ = written
    container = component.component_spec.implementation.container
    container.command = forms.configmap_command(container.command, func.__module__, func.__name__)
    return _with_signature(LauncherComponent(component.component_spec, func))


def _with_signature(component: dsl.PythonComponent) -> dsl.PythonComponent:
    """Has `help(component)` and `inspect.signature(component)` show what the component takes.

    What KFP fills in is left out, as the output artifacts and the task's settings, and what the
    call fills in from other arguments.
    """
    function = component.python_func
    inputs = component.component_spec.inputs
    parameters = inspect.signature(function).parameters.items()
    filled_in = arguments.filled_in(inputs)
    filled_in |= {name for name, each in parameters if each.annotation is dsl.TaskConfig}
    taken = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_plain(each.annotation))
        for name, each in parameters
        if name in inputs and name not in filled_in
    ]
    lines = "".join(f"    {parameter},\n" for parameter in taken)
    component.__signature__ = inspect.Signature(taken)
    component.__name__ = function.__name__
    entry = rf"^    (?:{'|'.join(filled_in)}): .*\n(?:     +.*\n)*"
    about = inspect.getdoc(function) or ""
    if filled_in:
        about = re.sub(entry, "", about, flags=re.MULTILINE)
    component.__doc__ = f"{function.__name__}(\n{lines})\n\n{about}"
    return component


def _plain(annotation: Any) -> Any:
    """Returns the artifact's class for `Input[Model]`, which is an `Annotated` type."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
