"""Launcher steps as processes of their own, started with the very command that KFP starts."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.hands import until

from benchmarks.cluster import Cluster
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.local.processes import guard, guarded

Object = dict[str, Any]
_ARTIFACTS = {"model": "Model", "metrics": "Metrics", "curves": "HTML", "report": "Markdown"}


@functools.cache
def command() -> list[str]:
    """The command of the component `pytorch_job`, with the launcher of this Python."""
    # Compiling needs all of kfp; what only measures does not.
    from kfp_pytorch.components import forms, pytorch_job

    container = {"command": pytorch_job.component_spec.implementation.container.command}
    spec = {"deploymentSpec": {"executors": {"step": {"container": container}}}}
    executors = forms.image_form(spec, forms.THIS_PYTHON)["deploymentSpec"]["executors"]
    return list(executors["step"]["container"]["command"])


def scaled(factor: float) -> dict[str, float]:
    """The launcher's own limits, made shorter by a factor: an hour passes in 3600 / factor s."""
    return {name: seconds / factor for name, seconds in asdict(Limits()).items() if seconds}


class Step:
    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        folder: Path,
        *,
        limits: Mapping[str, float] | None = None,
        **inputs: Any,
    ) -> None:
        self.name = f"step-{uuid.uuid4().hex[:8]}"
        self._folder = folder / self.name
        self._folder.mkdir(parents=True)
        log = self._folder / "termination-log"
        log.touch()
        environ = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._folder),
            "KUBECONFIG": str(cluster.kubeconfig(namespace)),
            "KFP_POD_NAME": self.name,
            "KFP_POD_UID": cluster.step_pod(namespace, self.name),
            "KFP_PYTORCH_TERMINATION_LOG": str(log),
        }
        given = {"image": "train:1", "name": self.name, "namespace": namespace} | inputs
        words = [*command()[:-1], _with_limits(limits) + command()[-1]]
        words += ["--executor_input", json.dumps(self._executor_input(given))]
        words += ["--function_to_execute", "pytorch_job"]
        with (self._folder / "log").open("w") as output:
            self._process = guarded.popen(
                words, grace=30.0, env=environ, stdout=output, stderr=subprocess.STDOUT
            )

    def _executor_input(self, given: Object) -> Object:
        root = f"minio://mlpipeline/{self.name}"
        files = self._folder / "outputs"
        artifacts = {}
        for name, kind in _ARTIFACTS.items():
            artifact = {"name": name, "uri": f"{root}/{name}", "customPath": str(files / name)}
            artifact |= {"type": {"schemaTitle": f"system.{kind}"}, "metadata": {}}
            artifacts[name] = {"artifacts": [artifact]}
        outputs = {
            "parameters": {"storage_uri": {"outputFile": str(files / "storage_uri")}},
            "artifacts": artifacts,
            "outputFile": str(files / "executor_output.json"),
        }
        return {"inputs": {"parameterValues": given}, "outputs": outputs}

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    @functools.cached_property
    def pid(self) -> int:
        """The process of the step's own Python, once it is there."""
        return until(self._python, 30.0)

    def _python(self) -> int | None:
        for pid in guard.descendants(self._process.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"kfp.dsl.executor_main" in words and b"-ec" not in words:
                    return pid
        return None

    def terminate(self) -> float:
        """Sends SIGTERM; returns when, in seconds of the monotonic clock."""
        now = time.monotonic()
        os.kill(self.pid, signal.SIGTERM)
        return now

    def wait(self, within: float) -> int:
        return self._process.wait(within)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))
        return kilobytes * 1024 / 1e6


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _with_limits(limits: Mapping[str, float] | None) -> str:
    """What a component's source begins with to give its launcher other limits."""
    if not limits:
        return ""
    return (
        "import functools as _functools\n"
        "import kfp_pytorch.launcher.steps.job as _step\n"
        f"_step.Limits = _functools.partial(_step.Limits, **{dict(limits)!r})\n"
    )
