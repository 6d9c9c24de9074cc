"""Ranks and nodes as real processes, which end with the test."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.ports import free_port
from torch.distributed import TCPStore

# torch is imported once, in the server that ranks are forked from, and not by each rank.
PROGRAMS = Path(__file__).with_name("programs")
RANK_PROCESS = PROGRAMS / "rank_process.py"
FORKS = multiprocessing.get_context("forkserver")
_IMPORTED = (
    *("image.loop", "language.loop", "rank", "faults.watchdog"),
    *("telemetry.tensorboard_events", "telemetry.confusion_matrix", "telemetry.mlflow_tracking"),
)
# What an export imports when it is written.
_EXPORTING = ("torch._export.non_strict_utils", "torch.export.pt2_archive._package")
FORKS.set_forkserver_preload(
    [*(f"kfp_pytorch.training.{name}" for name in _IMPORTED), "torch._dynamo", *_EXPORTING]
)


def await_text(path: Path, text: str, alive: Callable[[], bool], seconds: float = 300) -> None:
    """Waits until a process has written a text to a file."""
    deadline = time.monotonic() + seconds
    while not (path.exists() and text in path.read_text(errors="replace")):
        output = path.read_text(errors="replace") if path.exists() else ""
        assert alive(), f"ended before it wrote {text!r}:\n{output}"
        assert time.monotonic() < deadline, f"did not write {text!r}:\n{output}"
        time.sleep(0.02)


@dataclass
class Ranks:
    """The ranks of one job."""

    folder: Path
    processes: list[Any] = field(default_factory=list)

    def output(self, rank: int = 0) -> str:
        return (self.folder / f"{rank}.out").read_text()

    def await_output(self, text: str, rank: int = 0) -> None:
        await_text(self.folder / f"{rank}.out", text, self.processes[rank].is_alive)

    def send(self, rank: int, number: int = signal.SIGTERM) -> None:
        os.kill(self.processes[rank].pid, number)

    def exit_codes(self) -> list[int | None]:
        for process in self.processes:
            process.join(300)
        return [process.exitcode for process in self.processes]

    def error(self, rank: int) -> dict[str, Any]:
        record = json.loads((self.folder / f"{rank}.error.json").read_text())
        return dict(record["failure"])

    def result(self, node: int = 0) -> dict[str, Any]:
        return dict(json.loads((self.folder / f"outcome-{node}" / "result.json").read_text()))


def agents_environ(
    folder: Path, rank: int, size: int, port: int, node: int = 0, local_rank: int | None = None
) -> dict[str, str]:
    """The variables that torchrun's agent gives to a rank; by default all are on one node."""
    return {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "KFP_PYTORCH_OUTCOME_DIR": str(folder / f"outcome-{node}"),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "TORCHELASTIC_ERROR_FILE": str(folder / f"{rank}.error.json"),
    }


@pytest.fixture
def start_ranks(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts the ranks of a job: `start_ranks(2, "--epochs=3", name="first")`.

    `prepare` is a file of `programs` that each rank runs before it trains. `apart`: each is on a
    node of its own, and not all on one. `program`: what each process runs, by default a rank of our
    trainer; `environ`: further variables.
    """
    started: list[Ranks] = []
    stores: list[TCPStore] = []

    def start(
        size: int,
        *arguments: str,
        name: str = "ranks",
        prepare: str = "",
        apart: bool = False,
        program: Path = RANK_PROCESS,
        environ: dict[str, str] | None = None,
        **each: list[str],
    ) -> Ranks:
        folder = tmp_path / name
        ranks = Ranks(folder)
        started.append(ranks)
        # As under torchrun, the store outlives the ranks.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores.append(store)
        for rank in range(size):
            node, local_rank = (rank, 0) if apart else (0, rank)
            (folder / f"outcome-{node}").mkdir(parents=True, exist_ok=True)
            names = {
                "arguments": [*arguments, *each.get(f"rank{rank}", [])],
                "environ": {
                    **agents_environ(folder, rank, size, store.port, node, local_rank),
                    **(environ or {}),
                },
                "output": str(folder / f"{rank}.out"),
                "prepare": str(PROGRAMS / prepare) if prepare else "",
            }
            process = FORKS.Process(target=runpy.run_path, args=(str(program), names, "__main__"))
            process.start()
            ranks.processes.append(process)
        return ranks

    yield start
    for ranks in started:
        for process in ranks.processes:
            process.kill()
            process.join()


@dataclass
class Nodes:
    """The entry points of a job, as the pods of a PyTorchJob would run them."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def output(self, node: int = 0) -> str:
        return (self.folder / f"{node}.out").read_text()

    def await_output(self, text: str, node: int = 0) -> None:
        alive = self.processes[node]
        await_text(self.folder / f"{node}.out", text, lambda: alive.poll() is None)

    def exit_codes(self) -> list[int]:
        return [process.wait(300) for process in self.processes]

    def message(self, node: int = 0) -> dict[str, Any]:
        content = (self.folder / f"{node}.termination").read_bytes()
        assert len(content) <= 2048
        return dict(json.loads(content))


def operators_environ(node: int, size: int, port: str) -> dict[str, str]:
    """The variables that the operator gives to a pod."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
        "WORLD_SIZE": str(size),
        "RANK": str(node),
        "PET_NODE_RANK": str(node),
        "PET_NNODES": str(size),
        "PET_NPROC_PER_NODE": "1",
    }


@pytest.fixture(scope="module")
def start_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Nodes]]:
    """Starts the pods' processes, each with exactly the operator's environment."""
    started: list[Nodes] = []

    def start(
        size: int,
        *arguments: str,
        output: Path,
        environ: dict[str, str] | None = None,
        **each: list[str],
    ) -> Nodes:
        nodes = Nodes(tmp_path_factory.mktemp("nodes"))
        started.append(nodes)
        port = str(free_port())
        for node in range(size):
            termination = nodes.folder / f"{node}.termination"
            termination.touch()
            own_environ = {
                **operators_environ(node, size, port),
                "PATH": os.environ["PATH"],
                "HOME": str(nodes.folder),
                "PYTHONUNBUFFERED": "1",
                "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"],
                "KFP_PYTORCH_OUTPUT": str(output),
                "KFP_PYTORCH_TERMINATION_LOG": str(termination),
                **(environ or {}),
            }
            own = [*arguments, *each.get(f"node{node}", [])]
            command = [sys.executable, "-m", "kfp_pytorch.training", *own]
            with (nodes.folder / f"{node}.out").open("wb") as out:
                process = subprocess.Popen(command, env=own_environ, stdout=out, stderr=out)
            nodes.processes.append(process)
        return nodes

    yield start
    for nodes in started:
        for process in nodes.processes:
            if process.poll() is None:
                process.terminate()
                process.wait(300)
