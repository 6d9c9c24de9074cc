"""Runs a step: what every component's body calls."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.printing import print_error, write_termination_message

_INPUT = "--executor_input"
# In the name of a parameter that KFP adds for a value within a text.
_ADDED = "pipelinechannel--"


def run_step(name: str, /, **inputs: Any) -> Any:
    """Runs a step, and ends the process so that a person sees why it failed.

    KFP uploads no artifact of a failed step. It shows the end of stderr, and at the node the
    termination message.

    `name`: the step, a module of `launcher.steps`. Returns what the step's `run` returns. Raises
    SystemExit: with 1 after a `StepError`, whose message is then the last thing on stderr; with 143
    after a signal.
    """
    stopper = stopping.current()
    stopper.install()
    step = importlib.import_module(f"kfp_pytorch.launcher.steps.{name}")
    if not getattr(step, "HAS_TARGET", False):
        stopper.clear_target()
        stopper.check()
    try:
        _check_unchanged(sys.argv)
        result = step.run(**inputs)
    except StepError as error:
        stopper.set_target_known()
        stopper.check()
        report_failure(name, error)
        # No `from`: a traceback would push the message off the last lines.
        sys.exit(1)
    except Exception as error:
        # A fault of the launcher: its traceback is needed.
        stopper.set_target_known()
        stopper.check()
        write_termination_message(f"{name}: an unexpected {type(error).__name__}: {error}")
        raise
    stopper.check()
    return result


def _check_unchanged(arguments: list[str]) -> None:
    """Refuses a value with a backslash that KFP put as it is into the JSON of the step's inputs.

    It arrives changed: JSON reads some as line breaks and tabs.
    """
    if _INPUT not in arguments:
        return
    given = json.loads(arguments[arguments.index(_INPUT) + 1])
    for name, value in given.get("inputs", {}).get("parameterValues", {}).items():
        if name.startswith(_ADDED) and isinstance(value, str) and "\\" in value:
            raise InputError(
                f"{name.removeprefix(_ADDED)} is {value!r}; KFP puts it as it is into the JSON of "
                "a step's inputs, so it may have no backslash. Have a component return the list or "
                "dict that is the whole of the input, or pass the value in a file."
            )


def report_failure(name: str, error: StepError) -> None:
    """Writes an error to stderr, and in short to the step's own termination log."""
    write_termination_message(f"{name}: {error.short}")
    print_error(f"\n{name} failed.\n{text.wrapped(error.message)}")
