"""Switches a component's own caching off."""

from __future__ import annotations

from typing import Any

from kfp import dsl
from kfp.dsl.pipeline_task import PipelineTask, TaskState
from kfp.dsl.python_component import PythonComponent

from kfp_pytorch.components.signature import with_signature


class _Uncached(PythonComponent):  # type: ignore[misc]
    def __call__(self, *args: Any, **kwargs: Any) -> PipelineTask:
        task = super().__call__(*args, **kwargs)
        # Called outside of a pipeline, kfp.local has run it by now and lets nothing be set.
        if task.state is TaskState.FUTURE:
            task.set_caching_options(enable_caching=False)
        return task

    @property
    def pipeline_spec(self) -> Any:
        # What is compiled of a component alone: KFP makes its only task anew.
        spec = super().pipeline_spec
        for task in spec.root.dag.tasks.values():
            task.caching_options.enable_cache = False
        return spec


def uncached(component: dsl.PythonComponent) -> Any:
    """Makes every task of a component run every time.

    KFP's cache knows a task by its inputs. It does not know what the task does on the cluster: a
    job that was started is not started by a cached task, whatever became of it. Nor need it know
    what an input artifact holds.

    Args:
        component: The component.

    Returns:
        The component, whose tasks have caching off unless they switch it on again.
    """
    return with_signature(_Uncached(component.component_spec, component.python_func))
