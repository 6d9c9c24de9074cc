"""Runs the training program and reads its reports."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from kfp_pytorch.training.launch import usable_cores

RATE = re.compile(rb"samples_per_second=(\S+)")


def training_rates(arguments: Sequence[str], gpus: Sequence[int], reports: int) -> list[float]:
    """The first rates that a training reports; then it is killed.

    Args:
        arguments: Those of the training program, but for its output.
        gpus: The GPUs of this machine that train together, a process on each.
        reports: How many reports to wait for.

    Returns:
        Samples a second of all ranks together, report by report.

    Raises:
        RuntimeError: If it ends before.
    """
    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder:
        processes = _start([*arguments, f"--output={folder}"], gpus)
        try:
            return _read(processes[0], reports)
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.communicate()


def _start(arguments: Sequence[str], gpus: Sequence[int]) -> list[subprocess.Popen[bytes]]:
    """Starts the ranks as torchrun's agent does, but where they can be killed one by one."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    ranks = len(gpus)
    shared = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // ranks)),
    }
    command = [sys.executable, "-m", "kfp_pytorch.training.rank", *arguments]
    return [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]


def _read(process: subprocess.Popen[bytes], reports: int) -> list[float]:
    assert process.stdout is not None
    rates: list[float] = []
    for line in process.stdout:
        found = RATE.search(line)
        if found:
            rates.append(float(found[1]))
            print(f"#   {line.decode().strip()}", flush=True)
        if len(rates) == reports:
            return rates
    raise RuntimeError(f"training ended after {len(rates)} reports, of {reports}")
