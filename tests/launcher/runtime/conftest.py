"""A step as KFP runs it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.forked import NAMES, URI, Forker

PROGRAM = f"""
import json, sys
from types import SimpleNamespace
from kfp_pytorch.launcher import run_step
given = json.loads(sys.argv[1])
folder = given["folder"]
outputs = {{
    name: SimpleNamespace(path=f"{{folder}}/{{name}}", uri=f"{URI}/{{name}}", metadata={{}})
    for name in {NAMES}
}}
run_step(given["step"], **outputs, **given["inputs"])
"""


class Step:
    """The step `pytorch_job` in a process that starts at once, and has no imports before it."""

    def __init__(
        self, hands: Any, forker: Forker, folder: Path, environ: dict[str, str], **inputs: Any
    ) -> None:
        self.hands = hands
        folder.mkdir()
        self._log = folder / "termination-log"
        self._log.write_text("")
        told = {"KFP_PYTORCH_TERMINATION_LOG": str(self._log)}
        self._process = forker.start(folder, told | environ, **inputs)

    @property
    def message(self) -> str:
        """What the UI shows at the node."""
        return self._log.read_text()

    def signal(self, number: int = signal.SIGTERM) -> Step:
        self._process.signal(number)
        return self

    def exit(self) -> tuple[int, str]:
        """The exit code, and what it wrote."""
        ended = self._process.wait()
        return ended.code, ended.log

    def kill(self) -> None:
        self._process.kill()

    def job(self) -> Any:
        """The one job, once it is there."""
        return self.hands.until(lambda: next(iter(self.hands.jobs()), None))

    def runs(self) -> Step:
        """Lets the job run and waits until the step follows it."""
        name = self.job()["metadata"]["name"]
        self.hands.running(name)
        self.hands.set_conditions(name, "Created", "Running")
        self.hands.until(lambda: self.hands.count("get", "/log"))
        return self


class WholeStep(Step):
    """A step with its imports and with pipes that are read, as KFP runs it.

    `program`: what comes before them.
    """

    def __init__(
        self, hands: Any, folder: Path, program: str = "", name: str = "pytorch_job", **inputs: Any
    ) -> None:
        self.hands = hands
        self._log = folder / "termination-log"
        self._log.write_text("")
        given = {"folder": str(folder), "step": name, "inputs": inputs}
        settings = {
            "KUBECONFIG": str(hands.server.kubeconfig),
            "KFP_PYTORCH_TERMINATION_LOG": str(self._log),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", program + PROGRAM, json.dumps(given)],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, number: int = signal.SIGTERM) -> Step:
        self.process.send_signal(number)
        return self

    def exit(self) -> tuple[int, str]:
        """The exit code, and what it wrote to stderr."""
        _, stderr = self.process.communicate(timeout=120)
        return self.process.returncode, stderr

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def process(hands: Any, forker: Forker, tmp_path: Path) -> Iterator[Callable[..., Step]]:
    started: list[Step] = []

    def start(environ: dict[str, str] | None = None, **inputs: Any) -> Step:
        folder = tmp_path / str(len(started))
        started.append(Step(hands, forker, folder, environ or {}, **inputs))
        return started[-1]

    yield start
    for step in started:
        step.kill()


@pytest.fixture
def whole_process(hands: Any, tmp_path: Path) -> Iterator[Callable[..., WholeStep]]:
    started: list[WholeStep] = []

    def start(**inputs: Any) -> WholeStep:
        inputs = inputs if "name" in inputs else {"image": "train:1"} | inputs
        started.append(WholeStep(hands, tmp_path, **inputs))
        return started[-1]

    yield start
    for step in started:
        step.kill()
