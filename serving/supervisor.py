"""Several workers at one port: starts them, starts anew what ends, passes signals on.

It imports nothing but the standard library, and needs little memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from kfp_pytorch.serving.limits import OMP_ENV, cpu_limit

# What a worker is told by its environment.
SOCKET_ENV = "KFP_PYTORCH_SERVING_SOCKET"
# Where workers leave their numbers: prometheus_client reads it when it is imported.
SHARED_ENV = "PROMETHEUS_MULTIPROC_DIR"
# A worker that ends so early is not started anew at once.
SHORT_LIFE_SECONDS = 10.0
BACKOFF_SECONDS = 1.0


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound; who first serves makes it listen. Raises OSError: it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    made.set_inheritable(True)
    return made


def end_with_supervisor() -> None:
    """Makes this worker stop when its supervisor is gone."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()


class Supervisor:
    """The workers of one predictor."""

    def __init__(self, arguments: Sequence[str], workers: int, listening: socket.socket) -> None:
        self._command = [sys.executable, "-m", "kfp_pytorch.serving", *arguments]
        self._count = workers
        self._listening = listening
        self._workers: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._stopping = False
        self._threads = max(1, cpu_limit() // workers)

    def run(self) -> int:
        """Runs until a signal, or until a worker cannot start. Returns the exit code."""
        with tempfile.TemporaryDirectory(prefix="kfp-pytorch-serving-") as shared:
            environ = {
                **os.environ,
                SOCKET_ENV: str(self._listening.fileno()),
                SHARED_ENV: shared,
                # Each has its share of the CPUs.
                OMP_ENV: str(self._threads),
            }
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._stop)
            for _ in range(self._count):
                self._start(environ)
            code = 0
            while self._workers:
                code = self._wait(environ) or code
            return code

    def _start(self, environ: dict[str, str]) -> None:
        worker = subprocess.Popen(
            self._command,
            env=environ,
            # It ends when this process is gone, however that was.
            stdin=subprocess.PIPE,
            pass_fds=[self._listening.fileno()],
        )
        self._workers[worker.pid] = (worker, time.monotonic())

    def _wait(self, environ: dict[str, str]) -> int:
        """Waits for the end of a worker. Returns the exit code, if all have to end with it."""
        try:
            pid, status = os.wait()
        except ChildProcessError:
            self._workers.clear()
            return 0
        worker, began = self._workers.pop(pid, (None, 0.0))
        if worker is None:
            return 0
        code = os.waitstatus_to_exitcode(status)
        worker.returncode = code
        _forget_gauges(environ[SHARED_ENV], pid)
        if self._stopping:
            return 0
        if code == 1:
            # It says itself why it cannot serve, and no other could.
            self._stop()
            return 1
        print(f"worker {pid} ended with {code}; another is started", file=sys.stderr, flush=True)
        if time.monotonic() - began < SHORT_LIFE_SECONDS:
            time.sleep(BACKOFF_SECONDS)
        if not self._stopping:
            self._start(environ)
        return 0

    def _stop(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:  # noqa: ARG002
        self._stopping = True
        for worker, _ in list(self._workers.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)


def _forget_gauges(shared: str, pid: int) -> None:
    """Takes out what a worker that ended was doing when it ended."""
    with contextlib.suppress(OSError):
        for path in Path(shared).glob(f"gauge_live*_{pid}.db"):
            path.unlink()
