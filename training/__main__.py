"""The entry point of the training container.

It starts torchrun's agent, forwards signals, and writes the termination message at the end. It does
not import torch, so wrong arguments are reported at once.

Exit codes: 0 if training finished; 2 for arguments or an environment that cannot work; 143 if it
was asked to stop and saved a checkpoint; 138 if a rank of another node is lost, or a store is
unavailable; 128 + N if signal N ended a rank or the agent; 1 for any other failure, such as an
export that is not there as it was written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from kfp_pytorch.launcher.constants import EXIT_TERMINATED
from kfp_pytorch.training import export
from kfp_pytorch.training.arguments import config
from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.data import location
from kfp_pytorch.training.entry import rank_records
from kfp_pytorch.training.entry.environment import remove_final_line_breaks
from kfp_pytorch.training.entry.rank_records import EXIT_RETRYABLE, EXIT_USAGE, Failure
from kfp_pytorch.training.entry.termination_message import (
    failure_message,
    success_message,
    write_message,
)
from kfp_pytorch.training.entry.torchrun import RANK_MODULE, agent_arguments, threads_per_process
from kfp_pytorch.training.errors import ConfigError, TrainingError, UnavailableError
from kfp_pytorch.training.storage.job_folder import open_folder

_SHUTDOWN_SECONDS = 600


def main(arguments: list[str]) -> int:
    """Trains on all processes of this node. Returns the exit code; see the module."""
    remove_final_line_breaks(os.environ)
    try:
        settings = config.parse(arguments)
        location.check_data(settings)
        open_folder(settings.output)
        if settings.resume_from:
            open_folder(settings.resume_from)
        agent = agent_arguments(os.environ)
        records = _records()
    except TrainingError as error:
        _report(error)
        return EXIT_USAGE
    with records as scratch:
        folder = Path(scratch)
        code, terminated = _run_agent(agent, arguments, folder)
        return _conclude(folder, code, terminated, settings.output)


def _records() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="kfp-pytorch-outcome-")
    except OSError as error:
        raise ConfigError(
            f"there is no room for temporary files: {error}; mount an emptyDir at /tmp, or set "
            "TMPDIR to a folder that this user can write to"
        ) from error


def _run_agent(agent: list[str], arguments: list[str], folder: Path) -> tuple[int, bool]:
    """Runs torchrun's agent; returns its exit code, and whether SIGTERM or SIGINT was received."""
    # torchrun fails to parse an empty value.
    environ = {k: v for k, v in os.environ.items() if v.strip() or not k.startswith("PET_")}
    environ[rank_records.FOLDER_ENV] = str(folder)
    # The pod's grace period limits how long a save may take, not torchrun's half minute.
    environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    environ.setdefault("OMP_NUM_THREADS", str(threads_per_process(os.environ)))
    if ":" in environ.get("PET_NNODES", ""):
        # Agents that share one store number rounds by their own count of failures. It differs after
        # a node joined, and their ranks would never meet: so each round has its own store.
        environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # torchelastic removes this file before it writes, which fails for a mounted file.
    environ.pop("TORCHELASTIC_ERROR_FILE", None)
    command = [sys.executable, "-m", "kfp_pytorch.training.entry.agent", *agent]
    command += [
        f"--log-dir={folder / rank_records.RANKS_FOLDER}",
        "--module",
        RANK_MODULE,
        *arguments,
    ]
    received: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def forward() -> None:
        # Only once: a second signal would end the agent before its ranks have saved.
        if received:
            with contextlib.suppress(IndexError):
                started.pop().send_signal(signal.SIGTERM)

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        forward()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    # In its own session the agent gets a terminal's Ctrl-C from here alone.
    process = subprocess.Popen(command, env=environ, start_new_session=True)
    started.append(process)
    forward()
    code = process.wait()
    return code, bool(received)


def _conclude(folder: Path, code: int, terminated: bool, output: str) -> int:
    result = rank_records.read_result(folder)
    if result is not None:
        return _succeed(output, result)
    failure = rank_records.first_failure(folder) or _of_agent(code)
    if terminated or failure.exit_code in (EXIT_TERMINATED, -signal.SIGTERM):
        text = "asked to stop; a new start goes on from the newest checkpoint"
        _write(Failure(_node_rank(), time.time(), "Terminated", text), output)
        return EXIT_TERMINATED
    _write(failure, output)
    return 128 - failure.exit_code if failure.exit_code < 0 else failure.exit_code


def _succeed(output: str, result: dict[str, Any]) -> int:
    """Writes the message of a success, once the export that it names is seen to be there."""
    try:
        if result.get("export"):
            export.verify(open_folder(output), result["export"])
    except TrainingError as error:
        _report(error, output)
        return EXIT_RETRYABLE if isinstance(error, UnavailableError) else 1
    write_message(success_message(result))
    return 0


def _report(error: TrainingError, output: str = "") -> None:
    """Writes an error of this process to stderr and into the termination message."""
    print(f"error: {error}", file=sys.stderr)
    _write(Failure(_node_rank(), time.time(), type(error).__name__, str(error)), output)


def _write(failure: Failure, output: str) -> None:
    """Writes a failure into the termination message; `output`: the job's folder, if it is known."""
    write_message(failure_message(failure))
    # To read the folder may take a while.
    if output and (known := catalog.known_step(output)):
        write_message(failure_message(failure, known))


def _of_agent(code: int) -> Failure:
    """The failure of an agent that wrote no record."""
    text = "the agent ended and left no record; see this container's log"
    if code < 0:
        text = f"the agent was ended by {signal.Signals(-code).name}, and its ranks with it"
    return Failure(_node_rank(), time.time(), "AgentError", text, exit_code=min(code, 0) or 1)


def _node_rank() -> int:
    """This node's rank, for an error that no rank raised."""
    text = os.environ.get("PET_NODE_RANK") or os.environ.get("RANK") or ""
    return int(text) if text.isdecimal() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
