"""Runs a step: what every component's body calls."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher import stop
from kfp_pytorch.launcher.constants import TERMINATION_LOG_ENV, TERMINATION_LOG_PATH
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.progress import complain

# The kubelet keeps 4,096 bytes; KFP's own pods have several containers.
_MESSAGE_BYTES = 1024


def run_step(name: str, /, **inputs: Any) -> Any:
    """Runs a step and ends the process in the way that shows a person why it failed.

    KFP uploads no artifact of a failed step. What reaches a person is the end of stderr, and the
    termination message, which Argo shows at the node.

    Args:
        name: The step, a module of `launcher.steps`.
        **inputs: What the component got.

    Returns:
        What the step's `run` returns.

    Raises:
        SystemExit: With 1 after a `StepError`, whose message is then the last thing on stderr;
            with 143 after a signal.
    """
    stopper = stop.current()
    stopper.install()
    step = importlib.import_module(f"kfp_pytorch.launcher.steps.{name}")
    try:
        result = step.run(**inputs)
    except StepError as error:
        stopper.check()
        report_failure(name, error)
        # No `from`: a traceback would push the message off the last lines.
        sys.exit(1)
    stopper.check()
    return result


def report_failure(name: str, error: StepError) -> None:
    """Writes an error to stderr, and in short to the step's own termination log.

    Args:
        name: The step's name.
        error: What ended it.
    """
    path = Path(os.environ.get(TERMINATION_LOG_ENV) or TERMINATION_LOG_PATH)
    text = f"{name}: {error.short}".encode()[:_MESSAGE_BYTES].decode("utf-8", "ignore")
    try:
        # The kubelet makes the file; outside of a pod there is none, and none is wanted.
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
            file.truncate()
    except OSError:
        pass
    complain(f"\n{name} failed.\n{error.message}")
