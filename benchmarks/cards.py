"""The cards of this machine, and scripts that run on several of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch


def card() -> str:
    """What this process computes on."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def torchrun(gpus: int, command: list[str], **environ: str) -> list[dict[str, Any]]:
    """Runs a script on each GPU, shows what it prints as comments, returns its lines of JSON."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    run += [f"--nproc-per-node={gpus}", *command]
    found = []
    with subprocess.Popen(
        run, env=os.environ | environ, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            print(f"# {line}", end="", flush=True)
            if line.startswith("{"):
                found.append(json.loads(line))
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return found
