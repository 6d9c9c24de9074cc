"""The processes that read images, when their rank is killed or asked to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.pictures import make_folder

FEEDING = """
import sys
from pathlib import Path
from kfp_pytorch.training.data import datasets
from kfp_pytorch.training.data import device_loader
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.data.sampler import DistributedBatchSampler
if __name__ == "__main__":
    config = Config(dataset="imagefolder", data_dir=sys.argv[1], image_size=8, workers=2)
    found = datasets.load(config, ALONE)
    loader = device_loader.open_device_loader(config, ALONE, found)
    supply = loader.train(0, DistributedBatchSampler(37, 0, 1, 4, 0))
    next(supply)
    print("fed", flush=True)
    sys.stdin.read()
"""


# As a rank under torchrun, whose agent sends SIGTERM to all processes of the rank.
STOPPING = """
import os, signal, sys
from kfp_pytorch.training.data import datasets
from kfp_pytorch.training.data import device_loader
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.parallel.process_group import ALONE
from kfp_pytorch.training.data.sampler import DistributedBatchSampler
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
    config = Config(dataset="imagefolder", data_dir=sys.argv[1], image_size=8, workers=2)
    source = device_loader.open_device_loader(config, ALONE, datasets.load(config, ALONE))
    for epoch in range(3):
        batches = source.train(epoch, DistributedBatchSampler(37, 0, 1, 4, 0))
        print(sum(len(samples.labels) for _, samples in batches), flush=True)
        sys.stdin.readline()
    os._exit(0)
"""


def children(pid):
    """The processes that a process started, and those that these started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except (OSError, ProcessLookupError):
            continue
        if parent == pid:
            found += [int(status.parent.name), *children(int(status.parent.name))]
    return found


@pytest.mark.slow
def test_workers_are_gone_when_their_rank_was_killed(tmp_path):
    make_folder(tmp_path / "data")
    script = tmp_path / "feeding.py"
    script.write_text(FEEDING)
    command = [sys.executable, str(script), str(tmp_path / "data")]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert rank.stdout.readline() == b"fed\n"
    started = children(rank.pid)
    assert len(started) >= 3
    os.kill(rank.pid, signal.SIGKILL)
    rank.communicate()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline, "a worker outlives its rank"
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_continue_when_the_whole_process_group_is_asked_to_stop(tmp_path):
    make_folder(tmp_path / "data")
    script = tmp_path / "stopping.py"
    script.write_text(STOPPING)
    rank = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert rank.stdout.readline() == b"37\n"
    os.killpg(rank.pid, signal.SIGTERM)
    assert rank.stdout.readline() == b"asked\n"
    output, _ = rank.communicate(b"\n" * 3, timeout=300)
    assert output == b"37\n37\n"
