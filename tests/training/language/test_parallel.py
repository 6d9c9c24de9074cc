"""Whatever the plan, a job of several ranks trains as one process does."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.ports import free_port

from kfp_pytorch.training.parallel.plan import ParallelPlan

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "programs" / "parallel_ranks.py"
RANKS = runpy.run_path(str(SCRIPT))
FORKS = multiprocessing.get_context("forkserver")
CLOSE = {"rel": 2e-4}

TRAIN = [
    {"name": "ddp, accumulating", "plan": "ddp", "options": {"microbatches": 2}},
    {"name": "replicas of fsdp2", "plan": "ddp=2,fsdp2=2", "options": {"recompute": "full"}},
    {
        "name": "fsdp2 and tp",
        "plan": "fsdp2=2,tp=2",
        "options": {"recompute": "selective"},
        "save": "A",
    },
    {"name": "pp and ddp", "plan": "pp=2,ddp=2", "options": {"microbatches": 2}, "save": "B"},
]
GO_ON = [
    {
        "name": "A on pp and fsdp2",
        "plan": "pp=2,fsdp2=2",
        "saved": "A",
        "options": {"microbatches": 2},
    },
    {"name": "B on ddp", "plan": "ddp", "saved": "B", "options": {}},
]
MORE = [
    {"name": "ddp", "plan": "ddp", "options": {}},
    {"name": "fsdp2", "plan": "fsdp2", "options": {}},
    {"name": "fsdp2, accumulating", "plan": "fsdp2", "options": {"microbatches": 2}},
    {"name": "tp", "plan": "tp", "options": {}},
    {"name": "ddp and tp", "plan": "ddp=2,tp=2", "options": {"microbatches": 2}},
    {"name": "pp and fsdp2", "plan": "pp=2,fsdp2=2", "options": {"microbatches": 4}},
    {"name": "pp and tp", "plan": "pp=2,tp=2", "options": {"microbatches": 2}, "save": "C"},
    {"name": "C on fsdp2 and tp", "plan": "fsdp2=2,tp=2", "saved": "C", "options": {}},
]
EIGHT = [
    {"name": "pp, fsdp2 and tp", "plan": "pp=2,fsdp2=2,tp=2", "options": {"microbatches": 4}},
    {"name": "replicas of fsdp2 and tp", "plan": "ddp=2,fsdp2=2,tp=2", "options": {}},
    {
        "name": "pp and replicas of fsdp2",
        "plan": "pp=2,ddp=2,fsdp2=2",
        "options": {"microbatches": 2},
    },
]


def run(world: int, folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run cases on some ranks; what each rank saw."""
    names = {"WORLD": world, "PORT": free_port(), "FOLDER": str(folder), "CASES": cases}
    processes = []
    for rank in range(world):
        args = (str(SCRIPT), {**names, "RANK": rank}, "__main__")
        processes.append(FORKS.Process(target=runpy.run_path, args=args))
        processes[-1].start()
    try:
        waiting = list(processes)
        while waiting and not any(process.exitcode for process in processes):
            multiprocessing.connection.wait([process.sentinel for process in waiting])
            waiting = [process for process in waiting if process.is_alive()]
    finally:
        for process in processes:
            process.kill()
            process.join()
    # The first to fail says why; the others were left waiting for it.
    records = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    errors = [path.read_text() for path in records]
    assert not errors, errors[0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, list[float]]]:
    """One process, without any plan, for as long as the longest case."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    steps = RANKS["STEPS"]
    trainable, batches = RANKS["make"](ParallelPlan(), 0)
    first = RANKS["train"](trainable, batches)
    # The batch that was evaluated on counts as read, so a run that goes on starts after it.
    second = RANKS["train"](trainable, batches)
    torch.set_num_threads(threads)
    assert len(first["loss"]) == steps
    return {"first": first, "second": second}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The one job of four ranks that trains a plan of each kind in turn."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run(4, folder, TRAIN + GO_ON)


def assert_alike(seen: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    assert seen["loss"] == pytest.approx(expected["loss"], **CLOSE)
    assert seen["norm"] == pytest.approx(expected["norm"], **CLOSE)
    assert seen["evaluation"] == pytest.approx(expected["evaluation"], **CLOSE)


def test_one_process_learns_so_that_curves_have_something_to_agree_on(alone):
    assert alone["first"]["loss"][0] - alone["second"]["loss"][-1] > 0.5
    # Gradients are limited in each step, so a wrong norm would show in the curve, too.
    assert min(alone["first"]["norm"]) > RANKS["OPTIONS"]["clip_norm"]


@pytest.mark.parametrize("name", [case["name"] for case in TRAIN])
def test_the_curves_are_those_of_one_process(job, alone, name):
    for rank in job[1]:
        assert_alike(rank[name], alone["first"])


@pytest.mark.parametrize("name", [case["name"] for case in GO_ON])
def test_a_checkpoint_of_one_plan_resumes_under_another(job, alone, name):
    for rank in job[1]:
        assert_alike(rank[name], alone["second"])


@pytest.mark.parametrize("name", ["A", "B"])
def test_a_checkpoint_of_four_ranks_resumes_in_one_process(job, alone, name):
    trainable, batches = RANKS["make"](ParallelPlan(), 0, seed=7)
    RANKS["load"](trainable, batches, 0, str(job[0] / name))
    assert_alike(RANKS["train"](trainable, batches), alone["second"])


@pytest.mark.slow
def test_the_curves_of_every_other_plan_are_those_of_one_process(alone, tmp_path):
    for rank in run(4, tmp_path, MORE):
        for case in MORE:
            assert_alike(rank[case["name"]], alone["second" if "saved" in case else "first"])


@pytest.mark.slow
def test_the_curves_of_eight_ranks_in_three_ways_are_those_of_one_process(alone, tmp_path):
    for rank in run(8, tmp_path, EIGHT):
        for case in EIGHT:
            assert_alike(rank[case["name"]], alone["first"])


def test_a_rank_that_fails_is_named_with_its_reason(tmp_path):
    wrong = [{"name": "five", "plan": "ddp=2", "options": {"microbatches": 5}}]
    with pytest.raises(AssertionError, match="cannot be split into 5 microbatches"):
        run(2, tmp_path, wrong)
