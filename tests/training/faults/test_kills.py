"""Ranks are killed at random moments, hundreds of times, and nothing is lost but time."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import random
import runpy
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.ports import free_port

KILL_RANK = Path(__file__).parents[1] / "programs" / "kill_rank.py"
FORKS = multiprocessing.get_context("forkserver")
SAMPLES, RANKS = 192, 2
ARGUMENTS = (
    *(f"--max-train-samples={SAMPLES}", "--batch-size=16", "--checkpoint-every-steps=2"),
    *("--log-every=3", "--warmup-epochs=0", "--lr=0.001"),
)
# The survivor of a kill notices by itself; this is what a busy machine may need for it.
LEAVES_WITHIN = 300.0


@dataclass
class Job:
    """A job that is started again and again in one folder.

    Attributes:
        folder: Everything of it.
        starts: How often it was started.
        steps: What was trained on in each step that counts, by rank and step: epoch and samples.
        resumed: Where each start went on, if it came so far.
    """

    folder: Path
    starts: int = 0
    steps: list[dict[int, tuple[int, list[int]]]] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "job" / "checkpoints"

    def notes(self, rank: int) -> Path:
        return self.folder / f"{self.starts}-{rank}.notes"

    def start(self, epochs: int) -> list[Any]:
        self.starts += 1
        port = free_port()
        return [self._start_rank(rank, port, epochs) for rank in range(RANKS)]

    def _start_rank(self, rank: int, port: int, epochs: int) -> Any:
        environ = {
            "WORLD_SIZE": str(RANKS),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        names = {
            "arguments": [*ARGUMENTS, f"--epochs={epochs}", f"--output={self.folder / 'job'}"],
            "environ": environ,
            "output": str(self.folder / f"{rank}.out"),
        }
        given = {"notes": str(self.notes(rank)), "names": names}
        process = FORKS.Process(target=runpy.run_path, args=(str(KILL_RANK), given, "__main__"))
        process.start()
        return process

    def lines(self, rank: int) -> list[str]:
        notes = self.notes(rank)
        return notes.read_text().splitlines() if notes.exists() else []

    def has_resumed(self, rank: int) -> bool:
        return bool(self.lines(rank))

    def take_notes(self, complete: int) -> None:
        """Adds what the last start trained on; what it started from replaces what came after.

        Args:
            complete: The step of the newest checkpoint before that start.
        """
        self.steps = self.steps or [{} for _ in range(RANKS)]
        for rank in range(RANKS):
            lines = [line.split() for line in self.lines(rank)]
            if not lines:
                continue
            came_from = int(lines[0][1])
            assert came_from == complete, "it did not go on from the newest checkpoint"
            self.resumed.append(came_from)
            kept = {step: seen for step, seen in self.steps[rank].items() if step <= came_from}
            for step, epoch, *seen in lines[1:]:
                kept[int(step)] = int(epoch), [int(each) for each in seen]
            self.steps[rank] = kept

    def newest_checkpoint(self) -> dict[str, Any]:
        """Looks at every checkpoint that says it is complete; the newest one's description."""
        newest: dict[str, Any] = {"step": 0, "epoch": 0}
        for path in sorted(self.checkpoints.glob("step-*/meta.json")):
            meta = json.loads(path.read_text())
            for name, facts in meta["files"].items():
                content = (path.parent / name).read_bytes()
                assert hashlib.sha256(content).hexdigest() == facts["sha256"], f"{path}: {name}"
            newest = meta
        return newest

    def output(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("*.out")))


def kill(job: Job, ranks: list[Any], chance: random.Random) -> None:
    """Kills one rank or both at a random moment of starting, training or writing."""
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0, 2))
    else:
        steps = chance.randint(1, 12)
        while len(job.lines(0)) <= steps and all(rank.is_alive() for rank in ranks):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
    assert all(rank.is_alive() for rank in ranks), job.output()
    for rank in chance.choice([ranks, ranks[:1], ranks[1:]]):
        os.kill(rank.pid, signal.SIGKILL)
    for number, rank in enumerate(ranks):
        # One that is still looking for the others is ended by torchrun's agent.
        if not job.has_resumed(number):
            rank.kill()
        rank.join(LEAVES_WITHIN)
        assert rank.exitcode is not None, "a rank did not notice that the other has gone"
        # 138 is what a rank leaves with when another one has gone.
        assert rank.exitcode in (-signal.SIGKILL, 138), job.output()


def run(folder: Path, kills: int, seed: int) -> Job:
    """Kills a job so many times, and then lets it finish its epoch."""
    job, chance = Job(folder), random.Random(seed)
    for number in itertools.count():
        newest = job.newest_checkpoint()
        last = number == kills
        ranks = job.start(newest["epoch"] + 2 if last else 100_000)
        try:
            if not last:
                kill(job, ranks, chance)
            for rank in ranks:
                rank.join(300)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
        job.take_notes(newest["step"])
        if last:
            assert [rank.exitcode for rank in ranks] == [0, 0], job.output()
            return job
    raise AssertionError


def assert_each_sample_once_an_epoch(job: Job) -> None:
    epochs: dict[int, Counter[int]] = {}
    for rank in job.steps:
        assert sorted(rank) == list(range(1, max(rank) + 1)), "a step is missing"
        for epoch, seen in rank.values():
            epochs.setdefault(epoch, Counter()).update(seen)
    assert sorted(epochs) == list(range(max(epochs) + 1))
    for seen in epochs.values():
        assert seen == Counter(range(SAMPLES))


def check(folder: Path, kills: int, seed: int) -> None:
    job = run(folder, kills, seed)
    assert_each_sample_once_an_epoch(job)
    assert len(set(job.resumed)) > kills / 4, "hardly a start came further than the one before"
    steps, epochs = max(job.steps[0]), max(epoch for epoch, _ in job.steps[0].values()) + 1
    print(f"kills={kills} starts={job.starts} steps={steps} epochs={epochs}")


@pytest.mark.slow
def test_a_job_that_is_killed_again_and_again_sees_every_sample_once_an_epoch(tmp_path):
    check(tmp_path, kills=3, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_three_hundred_kills_lose_nothing(tmp_path):
    check(tmp_path, int(os.environ.get("KFP_PYTORCH_KILLS", "300")), seed=1)
