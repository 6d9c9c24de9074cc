"""Runs the training program and reads its reports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.ports import free_port

from kfp_pytorch.training.resources import usable_cores

_REPORT = re.compile(rb"\bstep=(\d+) .*samples_per_second=(\S+)")


@dataclass(frozen=True)
class Report:
    step: int  # the steps that were done
    rate: float  # samples a second of all ranks together since the report before, as it says itself
    at: float  # when it was read, in seconds of a clock


def training_rates(arguments: Sequence[str], gpus: Sequence[int], reports: int) -> list[float]:
    """The first rates that a training reports, in samples a second of all ranks together."""
    with (
        tempfile.TemporaryDirectory(prefix="kfp-pytorch-bench-") as folder,
        closing(training_reports(arguments, gpus, Path(folder))) as found,
    ):
        rates = [report.rate for report in islice(found, reports)]
    if len(rates) < reports:
        raise RuntimeError(f"training ended after {len(rates)} reports, of {reports}")
    return rates


def training_reports(
    arguments: Sequence[str], gpus: Sequence[int], output: Path
) -> Generator[Report]:
    """What a training with a process on each of these GPUs reports, as it comes.

    It is killed when no more is asked for.
    """
    processes = _start([*arguments, f"--output={output}"], gpus)
    try:
        assert processes[0].stdout is not None
        for line in processes[0].stdout:
            found = _REPORT.search(line)
            if found:
                print(f"#   {line.decode().strip()}", flush=True)
                yield Report(int(found[1]), float(found[2]), time.perf_counter())
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.communicate()


@contextmanager
def scraped(address: str) -> Iterator[list[str]]:
    """A context in which a page is asked for every second, as Prometheus does."""
    pages: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(1.0):
            with suppress(OSError), urllib.request.urlopen(address, timeout=5) as page:
                pages.append(page.read().decode())

    thread = threading.Thread(target=ask, name="prometheus", daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        over.set()
        thread.join()


def _start(arguments: Sequence[str], gpus: Sequence[int]) -> list[subprocess.Popen[bytes]]:
    """Starts the ranks as torchrun's agent does, but where they can be killed one by one."""
    ranks = len(gpus)
    shared = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
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
