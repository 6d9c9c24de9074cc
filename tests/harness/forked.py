"""Steps in processes of their own that start at once: forked from one that has imported all.

Such a process is killed with SIGKILL at whatever it does, and another takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

URI = "minio://mlpipeline/v2/artifacts/train/run-1/pytorch-job/abc"
NAMES = ("model", "metrics", "curves", "report")


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; negative for a signal.
        result: What the step handed on; empty when it failed.
        log: What it wrote, stdout and stderr.
    """

    code: int
    result: dict[str, Any]
    log: str


class Process:
    """One step."""

    def __init__(self, forker: Forker, pid: int, folder: Path) -> None:
        self.pid = pid
        self._forker = forker
        self._folder = folder

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> Ended:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def going(self) -> bool:
        return self._forker.ask("going", pid=self.pid) == "True"

    def wait(self) -> Ended:
        code = int(self._forker.ask("wait", pid=self.pid))
        result = self._folder / "result.json"
        return Ended(code, json.loads(result.read_text()) if result.exists() else {}, self.log)


class Forker:
    """Starts steps."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, folder: Path, environ: Mapping[str, str] | None = None, **inputs: Any
    ) -> Process:
        """Starts the step `pytorch_job` in a folder that need not be there yet."""
        folder.mkdir(parents=True, exist_ok=True)
        given = {"KUBECONFIG": str(self._kubeconfig)} | dict(environ or {})
        pid = self.ask("start", folder=str(folder), environ=given, inputs=inputs)
        return Process(self, int(pid), folder)

    def ask(self, what: str, **order: Any) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"do": what} | order) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the process that forks steps has ended"
        return answer.strip()

    def close(self) -> None:
        """Ends all that is left."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait()


def _serve() -> None:
    from kfp_pytorch.launcher.runtime import runner
    from kfp_pytorch.launcher.steps import pytorch_job

    assert runner
    assert pytorch_job
    codes: dict[int, int | None] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            pid = os.fork()
            if not pid:
                _be_a_step(**{k: v for k, v in order.items() if k != "do"})
            codes[pid] = None
            answer: object = pid
        else:
            answer = _look(codes, order["pid"], wait=order["do"] == "wait")
        print(answer, flush=True)
    for pid, code in codes.items():
        if code is None:
            os.kill(pid, signal.SIGKILL)


def _look(codes: dict[int, int | None], pid: int, *, wait: bool) -> object:
    if codes[pid] is None:
        found, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
        codes[pid] = os.waitstatus_to_exitcode(status) if found else None
    return codes[pid] if wait else codes[pid] is None


def _be_a_step(folder: str, environ: dict[str, str], inputs: dict[str, Any]) -> None:
    code = 70
    try:
        log = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(old, new)
        os.environ.update(environ)
        code = _run(Path(folder), inputs)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(folder: Path, inputs: dict[str, Any]) -> int:
    from kfp_pytorch.launcher import run_step

    outputs = {
        name: SimpleNamespace(path=str(folder / name), uri=f"{URI}/{name}", metadata={})
        for name in NAMES
    }
    places = run_step("pytorch_job", **{"image": "train:1"} | outputs | inputs)
    written = {"storage_uri": places.storage_uri, "metrics": outputs["metrics"].metadata}
    (folder / "result.json").write_text(json.dumps(written))
    return 0


if __name__ == "__main__":
    _serve()
