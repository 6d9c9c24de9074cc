"""A step as KFP runs it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PROGRAM = """
import json, sys
from types import SimpleNamespace
from kfp_pytorch.launcher import run_step
given = json.loads(sys.argv[1])
outputs = {
    name: SimpleNamespace(path=f"{given['folder']}/{name}", uri=f"minio://b/{name}", metadata={})
    for name in ("model", "metrics", "curves", "report")
}
run_step(given["step"], **outputs, **given["inputs"])
"""


class Step:
    """The step as KFP runs it: a process whose output is piped."""

    def __init__(
        self,
        hands: Any,
        folder: Any,
        environ: dict[str, str],
        program: str = "",
        name: str = "pytorch_job",
        **inputs: Any,
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
            env=os.environ | settings | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def message(self) -> str:
        """What the UI shows at the node."""
        return self._log.read_text()

    def signal(self, number: int = signal.SIGTERM) -> Step:
        self.process.send_signal(number)
        return self

    def exit(self) -> tuple[int, str]:
        """The exit code, and what it wrote to stderr."""
        _, stderr = self.process.communicate(timeout=120)
        return self.process.returncode, stderr

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


@pytest.fixture
def process(hands: Any, tmp_path: Any) -> Iterator[Callable[..., Step]]:
    started: list[Step] = []

    def start(environ: dict[str, str] | None = None, **inputs: Any) -> Step:
        inputs = inputs if "name" in inputs else {"image": "train:1"} | inputs
        started.append(Step(hands, tmp_path, environ or {}, **inputs))
        return started[-1]

    yield start
    for step in started:
        if step.process.poll() is None:
            step.process.kill()
            step.process.communicate()
