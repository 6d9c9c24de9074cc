from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import urllib3
from harness.ports import free_port

CLASSES = ["zero", "one", "two", "three"]


class BrightestQuarter(torch.nn.Module):
    """Says which quarter of a 4 x 4 image is the brightest: a classifier with known answers."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        pooled = torch.nn.functional.avg_pool2d(image / 16.0, 2)
        return 10.0 * pooled.flatten(1)


def write_export(
    folder: Path,
    module: torch.nn.Module | None = None,
    example: torch.Tensor | None = None,
    sizes: dict[int, Any] | None = None,
    **changes: Any,
) -> Path:
    """Writes an export as training does; `changes` are put over the fields of model.json.

    `sizes` are the dimensions that are free beside the batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(2, 1, 4, 4) if example is None else example
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(
        (module or BrightestQuarter()).eval(),
        (example,),
        dynamic_shapes=({0: batch, **(sizes or {})},),
    )
    path = folder / "model.pt2"
    torch.export.save(program, path)
    description = {
        "format": "kfp-pytorch",
        "version": 1,
        "inputs": [{"name": "image", "shape": [-1, *example.shape[1:]], "datatype": "FP32"}],
        "outputs": [{"name": "logits", "shape": [-1, 4], "datatype": "FP32"}],
        "classes": CLASSES,
        "versions": {"torch": torch.__version__},
        "program": "model.pt2",
        "files": {
            "model.pt2": {
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "bytes": path.stat().st_size,
            }
        },
    } | changes
    (folder / "model.json").write_text(json.dumps(description))
    return folder


@pytest.fixture(name="write_export", scope="session")
def _write_export() -> Callable[..., Path]:
    return write_export


# One worker gets the files with fast tests of it and of `server`: harness/scheduling.py lists them.
@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("model") / "export")


@dataclass
class Server:
    """A predictor's process and an HTTP client for it."""

    process: subprocess.Popen[str]
    port: int
    http: urllib3.HTTPConnectionPool
    grpc_port: int = 0

    def post(self, path: str, body: Any, **headers: str) -> urllib3.BaseHTTPResponse:
        data = body if isinstance(body, bytes | str) else json.dumps(body)
        sent = {"content-type": "application/json"} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }
        return self.http.request("POST", path, body=data, headers=sent)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the predictor ended before it was ready"
            try:
                if self.http.request("GET", "/v1/models/digits").status == 200:
                    return
            except urllib3.exceptions.HTTPError:
                time.sleep(0.05)
        raise AssertionError("the predictor was not ready in five minutes")


def start(
    model_dir: Path, *more: str, program: Sequence[str] = ("-m", "kfp_pytorch.serving")
) -> Server:
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, *program, "--model_name", "digits"),
            *("--model_dir", str(model_dir), "--http_port", str(port)),
            *("--http_host", "127.0.0.1", *more),
        ],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    http = urllib3.HTTPConnectionPool("127.0.0.1", port, retries=False, timeout=120)
    return Server(process, port, http)


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[..., Server]]:
    """Starts predictors that are gone after the tests of the file."""
    servers: list[Server] = []

    def new(model_dir: Path, *more: str, **options: Any) -> Server:
        servers.append(start(model_dir, *more, **options))
        return servers[-1]

    yield new
    for server in servers:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="session")
def server(exported: Path) -> Iterator[Server]:
    port = str(free_port())
    running = start(exported, "--max_body_mib", "1", "--grpc_port", port)
    running.grpc_port = int(port)
    try:
        running.wait_ready()
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.process.communicate(timeout=120)
