"""`distribute`: a component whose function runs in every process of a job."""

from __future__ import annotations

import copy
import functools
import itertools
import re
import shlex
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.environment import SIZE_LIMIT
from kfp_pytorch.launcher.jobs.distributed import component as distributed
from kfp_pytorch.launcher.jobs.distributed.component import Distributed
from kfp_pytorch.launcher.jobs.kind import JobKind

KINDS = ("pytorch_job", "train_job")
_TAKES = "what @dsl.component makes of a function, without target_image"
# KFP's command of a component that installs nothing.
_EMPTY = ("sh", "-ec", "script", "source")
_PIP = ("pip", "install")
_OWN_NAMES = {"num_nodes": "nodes", "nproc_per_node": "procs_per_node"}
_ON_THE_TASK = {"cpu": "1", "memory": "1Gi"}


def distribute(
    component: Any,
    *,
    nodes: int = 2,
    procs_per_node: int | str = "",
    kind: str = "pytorch_job",
    image: str = "",
    **inputs: Any,
) -> Any:
    """Makes a component that runs as a distributed job of a lightweight Python component.

    The new component has the same inputs and outputs. Its function runs in every process, under
    torchrun: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and the others are set. What rank 0 returns
    are the step's outputs. The settings of the task, such as its accelerators, go to the pods.

    Args:
        component: What `@dsl.component` made.
        nodes: How many pods run it.
        procs_per_node: Processes in each pod; empty for one for each GPU, or one.
        kind: `pytorch_job`, or `train_job` for a TrainJob.
        image: The pods' image, with torch; empty for the component's `base_image`.
        **inputs: Further inputs of that job, such as output_uri, gpus_per_node, source, placement:
            constants.

    Returns:
        The component. Output artifacts with a file have it in the job's folder, and its URI in
        their metadata as `storage_uri`.

    Raises:
        ValueError: It is no such component, or an input cannot work.
    """
    for theirs in inputs.keys() & _OWN_NAMES.keys():
        raise InputError(f"distribute has no input {theirs!r}; give {_OWN_NAMES[theirs]}.")
    function, source, install = _taken_apart(component)
    container = component.component_spec.implementation.container
    restarts = kind != "pytorch_job" or "elastic" in inputs
    given = {
        "name": component.name,
        "image": image or container.image,
        "num_nodes": nodes,
        "nproc_per_node": str(procs_per_node),
        # What fails in user code is not tried again, as in any step; task.set_retry does.
        **({} if restarts else {"restart_policy": "Never"}),
        **inputs,
    }
    made = Distributed(function, source, install, kind, given)
    _check(made, container.image if not image else "")
    return _component(component, made)


def _taken_apart(component: Any) -> tuple[str, str, list[list[str]]]:
    """The function's name, the module with it, and the arguments of each `pip install`."""
    from kfp.dsl.python_component import PythonComponent

    if not isinstance(component, PythonComponent):
        raise InputError(f"distribute takes {_TAKES}, not {component!r}.")
    container = component.component_spec.implementation.container
    words, arguments = list(container.command or []), list(container.args or [])
    if len(words) < len(_EMPTY) or "--function_to_execute" not in arguments:
        raise InputError(f"{component.name} has an image with its code in it; it must be {_TAKES}.")
    if "kfp_pytorch.components" in words[-1]:
        raise InputError(f"{component.name} is a component of kfp_pytorch; it must be {_TAKES}.")
    script = words[2] if len(words) > len(_EMPTY) else ""
    if "-m venv" in script:
        raise InputError(
            f"{component.name} has use_venv; leave it out: pods install into a folder of theirs."
        )
    return arguments[-1], words[-1], _installs(script)


def _installs(script: str) -> list[list[str]]:
    """The arguments of each `pip install` in the script that KFP makes of a component."""
    words = shlex.split(script)
    found: list[list[str]] = []
    for i, pair in enumerate(itertools.pairwise(words)):
        if pair == _PIP:
            rest = words[i + 2 :]
            found.append(rest[: rest.index("&&")] if "&&" in rest else rest)
    return found


def _check(made: Distributed, base_image: str) -> None:
    from kfp.dsl.component_factory import _DEFAULT_BASE_IMAGE

    from kfp_pytorch.launcher.jobs.registry import KINDS as EVERY

    if made.kind not in KINDS:
        raise InputError(f"kind is {made.kind!r}; it must be one of {', '.join(KINDS)}.")
    for name in distributed.OWN_INPUTS:
        if name in made.inputs:
            raise InputError(f"{name} is set by distribute; the function is the program.")
    if base_image == _DEFAULT_BASE_IMAGE and not any(
        "torch" in word for each in made.install for word in each
    ):
        raise InputError(
            f"{made.function} has the image {base_image}, which has no torch: give @dsl.component "
            "base_image, or distribute image."
        )
    _check_job(EVERY[made.kind], made)
    size = len(distributed.to_argument(made).encode())
    if size > SIZE_LIMIT:
        raise InputError(
            f"{made.function} and its inputs are {size:,} bytes as one argument of a step; the "
            f"limit is {SIZE_LIMIT:,}. Put larger code into the image."
        )


def _check_job(kind: JobKind, made: Distributed) -> None:
    """Refuse what the step would refuse, whatever is set on its task."""
    from kfp_pytorch.launcher.runtime import identity

    try:
        inputs = kind.parse_inputs(**made.inputs)
    except InputError as error:
        message = error.message
        for theirs, own in _OWN_NAMES.items():
            message = re.sub(rf"\b{theirs}\b", own, message)
        raise InputError(message) from None
    if "pod_template_patch" in made.inputs:
        # It may have resources that contradict those below.
        return
    # YuniKorn needs to know what the pods request, which may be set on the task.
    inputs = kind.parse_inputs(**{**_ON_THE_TASK, **made.inputs})
    name = identity.job_name(inputs.name, "", kind.longest_suffix(inputs))
    kind.build(inputs, job_name=name, labels={}, annotations={}, owner=None)


def _check_names(name: str, spec: Any) -> None:
    """Refuse inputs and outputs that a distributed component has already."""
    inputs = spec.inputs or {}
    if any(given.type == "TaskConfig" for given in inputs.values()):
        raise InputError(
            f"{name} takes a dsl.TaskConfig; distribute gives the task's settings to the pods "
            "itself."
        )
    for taken in ({"task_config"} & {*inputs}) | ({distributed.REPORT} & {*(spec.outputs or {})}):
        raise InputError(f"{name} has an input or output {taken!r}, as distribute; rename it.")


def _component(component: Any, made: Distributed) -> Any:
    from kfp import dsl
    from kfp.dsl import structures

    from kfp_pytorch.components import forms
    from kfp_pytorch.components.task_settings import TASK_SETTINGS

    spec = copy.deepcopy(component.component_spec)
    _check_names(component.name, spec)
    spec.inputs = {
        **(spec.inputs or {}),
        "task_config": structures.InputSpec(type="TaskConfig", default=None, optional=True),
    }
    report = structures.OutputSpec(type="system.Markdown@0.0.1")
    spec.outputs = {**(spec.outputs or {}), distributed.REPORT: report}
    spec.task_config_passthroughs = [
        dsl.TaskConfigPassthrough(getattr(dsl.TaskConfigField, field), apply_to_task=applied)
        for field, applied in TASK_SETTINGS.items()
    ]
    container = spec.implementation.container
    step = ("kfp_pytorch.components.distributed.step", "distributed")
    container.command = forms.configmap_command(container.command, *step)
    container.image = forms.BASE_IMAGE
    executor_input = [distributed.EXECUTOR_INPUT, container.args[1]]
    container.args = [
        *executor_input,
        *("--function_to_execute", "distributed"),
        *(distributed.DISTRIBUTED, distributed.to_argument(made)),
    ]
    return _class()(spec, component.python_func)


@functools.cache
def _class() -> Any:
    from kfp.dsl.python_component import PythonComponent

    from kfp_pytorch.components import arguments

    class DistributedComponent(PythonComponent):  # type: ignore[misc]
        """A component whose task has the outputs of the function alone."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            task = super().__call__(*args, **arguments.unchanged(kwargs))
            # Of a component with one output `task.output` is that one.
            task._outputs.pop(distributed.REPORT, None)
            return task

    return DistributedComponent
