"""The container's entry point.

It installs what the component asks for, downloads input artifacts, starts torchrun, and writes the
termination message.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from .common import RANKS, datasets, read_settings
from .outputs import MESSAGE_LIMIT

TERMINATED = 143


def main() -> int:
    """Runs all processes of this node. Returns the container's exit code."""
    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-") as scratch:
        folder = Path(scratch)
        try:
            environ = installed(read_settings()["install"], folder)
        except subprocess.CalledProcessError as error:
            what = " ".join(error.cmd[error.cmd.index("install") + 1 :])
            told = f"pip could not install what the component asks for: {what}"
            write_failure(None, "InstallError", told)
            return 1
        environ[RANKS] = scratch
        code, stopped = 0, False
        if any("://" in uri for uri in datasets().values()):
            code, stopped = run([f"{__package__}.fetch"], environ)
        if not code and not stopped:
            of_torchrun = ["torch.distributed.run", "-m", f"{__package__}.rank"]
            code, stopped = run(of_torchrun, for_torchrun(environ))
        return conclude(folder, code, stopped)


def installed(commands: list[list[str]], folder: Path) -> dict[str, str]:
    """Installs packages into a folder of this pod; returns the environment that has them."""
    environ = {**os.environ, "_KFP_RUNTIME": "true", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    prefix = folder / "packages"
    for words in commands:
        # The image's own may not be writable, and on a machine of several pods it is everybody's.
        command = [sys.executable, "-m", "pip", "install", f"--prefix={prefix}", *words]
        subprocess.run(command, env=environ, check=True)
        scheme = sysconfig.get_preferred_scheme("prefix")
        base = {"base": str(prefix), "platbase": str(prefix)}
        places = {sysconfig.get_path(each, scheme, base) for each in ("purelib", "platlib")}
        given = [environ[name] for name in ("PYTHONPATH",) if environ.get(name)]
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*sorted(places), *given]))
    return environ


def for_torchrun(environ: dict[str, str]) -> dict[str, str]:
    """Sets what torchrun's agent is to have; what is set already stays."""
    found = {}
    if environ.get("PET_NPROC_PER_NODE", "1") != "1":
        # As torchrun does, with many words.
        found["OMP_NUM_THREADS"] = "1"
    if ":" in environ.get("PET_NNODES", ""):
        # Agents that share one store number rounds by their own count of failures. It differs after
        # a node joined, and their ranks would never meet: so each round has its own store.
        found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return {**found, **environ}


def run(module: list[str], environ: dict[str, str]) -> tuple[int, bool]:
    """Runs a module with its arguments; returns its exit code, and whether SIGTERM came.

    torchrun reads its options from the variables PET_*.
    """
    # torchelastic removes this file before it writes, which fails for a mounted one.
    environ.pop("TORCHELASTIC_ERROR_FILE", None)
    command = [sys.executable, "-m", *module]
    process = subprocess.Popen(command, env=environ, start_new_session=True)
    received: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not received:
            process.send_signal(signal.SIGTERM)
        received.append(number)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    return process.wait(), bool(received)


def conclude(folder: Path, code: int, stopped: bool) -> int:
    """Writes the termination message; returns the container's exit code."""
    if stopped:
        write_failure(None, "Terminated", "asked to stop")
        return TERMINATED
    if code == 0:
        result = folder / "result.json"
        # Of a node without rank 0 there is nothing to say.
        if result.is_file():
            write_message(json.loads(result.read_text(encoding="utf-8")))
        return 0
    records = [json.loads(each.read_text(encoding="utf-8")) for each in folder.glob("error-*.json")]
    if records:
        # torchrun has started the ranks again after the errors of an earlier start.
        first = min(records, key=lambda record: (-record["restart"], record["time"]))
        write_failure(
            first["rank"], first["type"], first["message"], first["traceback"], first["time"]
        )
    else:
        told = "a process ended without a Python error; the log says more"
        write_failure(None, "ExitCode", told)
    return 1


def write_failure(
    rank: int | None, kind: str, message: str, text: str = "", at: float = 0.0
) -> None:
    """Writes a failure; of a long traceback the end."""
    for length in (1500, 1000, 600, 300, 0):
        error = {
            "rank": rank,
            "time": at or time.time(),
            "type": kind,
            "message": message[:400],
            "traceback": text[-length:] if length else "",
        }
        report = {"version": 1, "status": "failed", "error": error}
        if len(json.dumps(report).encode()) <= MESSAGE_LIMIT:
            break
    write_message(report)


def write_message(report: dict[str, Any]) -> None:
    """Writes the termination message in place: it is a mounted file."""
    path = os.environ.get("KFP_PYTORCH_TERMINATION_LOG", "/dev/termination-log")
    with Path(path).open("w", encoding="utf-8") as file:
        file.write(json.dumps(report))


if __name__ == "__main__":
    sys.exit(main())
