"""Stands in for a step's pod: its object, and Argo's emissary around KFP's launcher.

    python emissary.py FOLDER

FOLDER/pod.json says which pod. On SIGTERM it signals the whole process group, of which KFP's
launcher dies at once, and `kill_after` seconds later everything in the container is gone: that is
what happens on Terminate, when a node is drained and when the pod is deleted.

https://github.com/argoproj/argo-workflows/blob/v3.6.7/cmd/argoexec/commands/emissary.go
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from kfp_pytorch.launcher import constants
from kfp_pytorch.local import client
from kfp_pytorch.local.kfp import step

HERE = Path(__file__).resolve().parent
NODE_DIED = "node-died"


class Container:
    """The process group of the step's container."""

    def __init__(self, folder: Path, environment: dict[str, str], kill_after: float) -> None:
        self._folder = folder
        self._kill_after = kill_after
        self.signalled = False
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "kfp_launcher.py"), str(folder)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def terminate(self, _number: int, _frame: FrameType | None) -> None:
        """Signal the group, and end what is left of it soon; at once where the node died."""
        self.signalled = True
        if (self._folder / NODE_DIED).exists():
            self._signal(signal.SIGKILL)
            return
        self._signal(signal.SIGTERM)
        killing = threading.Timer(self._kill_after, self._signal, [signal.SIGKILL])
        killing.daemon = True
        killing.start()

    def wait(self) -> int:
        """The exit code of KFP's launcher, once nothing of the container runs."""
        code = self._process.wait()
        while self._alive():
            threading.Event().wait(0.01)
        return 128 - code if code < 0 else code

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _alive(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _bind(pod: step.PodObject) -> None:
    """Put the pod on a node: one that is on none is deleted at once, without a mark."""
    setting = pod.setting
    url = client.path(constants.POD, setting.namespace, pod.name, subresource="binding")
    body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "harness"}}
    client.request(setting.server, "POST", url, body, token=setting.token)


def main(folder: Path) -> int:
    """Run one attempt of a step; returns the exit code of its main container."""
    given = json.loads((folder / "pod.json").read_text())
    pod = step.PodObject(step.Setting(**given["setting"]), given["step"])
    pod.create()
    _bind(pod)
    log = folder / "termination-log"
    log.touch()
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = step.environment(pod, log) | {
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(HERE / "in_container"),
        "HARNESS_CONTAINER": str(folder),
    }
    container = Container(folder, environment, given["kill_after"])
    signal.signal(signal.SIGTERM, container.terminate)
    pod.started(datetime.now(UTC))
    (folder / "pod-name").write_text(pod.name)
    code = container.wait()
    if container.signalled:
        code = constants.EXIT_TERMINATED
    message = log.read_bytes()[-step.MESSAGE_BYTES :].decode("utf-8", "replace")
    pod.ended(code, message, datetime.now(UTC))
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
