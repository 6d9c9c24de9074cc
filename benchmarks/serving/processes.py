"""Starts servers, and waits until each answers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import urllib3
from harness.ports import free_port

PEERS = Path(__file__).parents[1] / "peers"
NAME = "model"
_PATIENCE_SECONDS = 300.0


@dataclass
class Started:
    """A server on loopback."""

    port: int
    grpc_port: int
    process: subprocess.Popen[bytes] = field(repr=False)
    log: IO[bytes] = field(repr=False)

    @property
    def predict(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/models/{NAME}:predict"


@contextmanager
def running(commands: dict[str, list[str]], threads: int = 0) -> Iterator[dict[str, Started]]:
    """Servers of these commands, in which {port} and {grpc_port} are replaced.

    `threads`: how many torch has in each; 0 for as many as each chooses.
    """
    environ = {**os.environ} | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    with ExitStack() as stack:
        started = {}
        for name, words in commands.items():
            ports = {"port": free_port(), "grpc_port": free_port()}
            command = [sys.executable, *(word.format(**ports) for word in words)]
            # KServe's server prints lines for each request.
            log = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
            stack.callback(process.wait)
            stack.callback(process.kill)
            started[name] = Started(ports["port"], ports["grpc_port"], process, log)
        for name, server in started.items():
            _wait(name, server)
        yield started


def predictor(export: Path, *more: str) -> list[str]:
    """The command of this project's predictor."""
    words = ["-m", "kfp_pytorch.serving", "--model_name", NAME, "--model_dir", str(export)]
    return [*words, "--http_host=127.0.0.1", "--http_port={port}", "--grpc_port={grpc_port}", *more]


def bare(export: Path, kind: str) -> list[str]:
    """The command of a bare FastAPI handler: `async` or `sync`."""
    return [str(PEERS / "bare_fastapi.py"), str(export), NAME, "{port}", kind]


def kserve(export: Path) -> list[str]:
    """The command of KServe's default server."""
    words = [str(PEERS / "kserve_default.py"), str(export), NAME]
    return [*words, "--http_port={port}", "--grpc_port={grpc_port}"]


def _wait(name: str, server: Started) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        if server.process.poll() is not None:
            server.log.seek(0)
            raise RuntimeError(f"{name} ended: {server.log.read()[-2000:].decode()}")
        with suppress(urllib3.exceptions.HTTPError):
            address = f"http://127.0.0.1:{server.port}/v2/models/{NAME}/ready"
            if urllib3.request("GET", address, retries=False, timeout=5).status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{name} does not answer")
