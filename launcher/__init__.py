"""What runs in a step's pod: it drives a job on Kubernetes, follows it and reports."""

from __future__ import annotations

import signal
from typing import Any

__all__ = ["run_step"]


def run_step(name: str, /, **inputs: Any) -> Any:
    """Runs a step; see `kfp_pytorch.launcher.runtime.runner.run_step`.

    Imported only when it is called: the package's constants are also read where no step runs.

    Args:
        name: The step, a module of `launcher.steps`.
        **inputs: What the component got.

    Returns:
        What the step's `run` returns.
    """
    # A signal waits until its handler is there: a job of an earlier attempt may be alive.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    from kfp_pytorch.launcher.runtime import runner

    return runner.run_step(name, **inputs)
