"""A step in a process of its own, which gets a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAM = """
import json, sys
from types import SimpleNamespace
from kfp_pytorch.launcher import run_step
name, inputs, artifacts = map(json.loads, sys.argv[1:])
run_step(name, **inputs, **{key: SimpleNamespace(**value) for key, value in artifacts.items()})
"""
# Argo kills what is left within a second or so.
LONGEST = 3.0


class StepProcess:
    """Runs a step of the launcher; `artifacts` have `path`, `uri` and `metadata` each."""

    def __init__(
        self, folder: Path, environ: dict[str, str], name: str, artifacts: Any = None, **inputs: Any
    ) -> None:
        self._log = folder / "termination-log"
        self._log.touch()
        given = {
            key: {"path": str(folder / key), "uri": "", "metadata": {}} | value
            for key, value in (artifacts or {}).items()
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(json.dumps, (name, inputs, given))],
            env=os.environ | {"KFP_PYTORCH_TERMINATION_LOG": str(self._log)} | environ,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def ended(self) -> str:
        """Its last words after SIGTERM, which it obeys at once."""
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        _, errors = self._process.communicate(timeout=120)
        assert time.monotonic() - began < LONGEST
        assert self._process.returncode == 143
        assert errors.strip().endswith(self._log.read_text().strip())
        return self._log.read_text()

    def killed(self) -> None:
        """After SIGKILL it says nothing."""
        self._process.kill()
        self._process.communicate(timeout=120)
