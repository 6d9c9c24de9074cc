"""Finds inputs that cannot work before anything runs.

The checks are the launcher's own, on what is known of a task's inputs beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kfp_pytorch.cli.constants import KnownTask, known_tasks
from kfp_pytorch.cli.packages import Package


def check(package: Package, arguments: dict[str, Any] | None = None) -> None:
    """Checks the constants, defaults and arguments that reach this project's components.

    Args:
        package: The package.
        arguments: The arguments of the run that is to start; None when there is none.

    Raises:
        click.ClickException: When an input cannot work; each one is named with its task.
    """
    found = [
        f"task {task.name}: {problem}"
        for task in known_tasks(package, arguments or {})
        for problem in _problems(task)
    ]
    if found:
        raise click.ClickException(f"{package.pipeline_name}: " + "\n".join(found))


def _problems(task: KnownTask) -> list[str]:
    problems = [
        f"parameter {name} is {value!r}; KFP puts it as it is into the JSON of a step's inputs, "
        "so it may have no quotation mark, backslash or control character. Pass such a value "
        "whole, as an input of its own."
        for name, value in task.unsafe.items()
    ]
    checker = _CHECKERS.get(task.function)
    if checker and not problems:
        from kfp_pytorch.launcher.errors import InputError

        try:
            checker(task.inputs)
        except InputError as error:
            problems.append(error.message)
    return problems


def _pytorch_job(inputs: dict[str, Any]) -> None:
    from kfp_pytorch.launcher.inputs import parse_inputs

    if "image" not in inputs:  # known at run time only; the rest can be checked all the same
        inputs = {**inputs, "image": "unknown"}
    parse_inputs(**inputs)


_CHECKERS: dict[str, Callable[[dict[str, Any]], None]] = {"pytorch_job": _pytorch_job}
