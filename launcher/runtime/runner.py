"""Runs a step: what every component's body calls."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from kfp_pytorch.launcher import text
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.printing import print_error, write_termination_message


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


def report_failure(name: str, error: StepError) -> None:
    """Writes an error to stderr, and in short to the step's own termination log."""
    write_termination_message(f"{name}: {error.short}")
    print_error(f"\n{name} failed.\n{text.wrapped(error.message)}")
