"""The choice of torch's number of threads, at the start and while it serves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kfp_pytorch.serving import export
from kfp_pytorch.serving.predictor import Answers, Predictor
from kfp_pytorch.serving.speed import threads
from kfp_pytorch.serving.speed.threads import Threads, in_own_thread


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def work(*, slow_with: int | None = None) -> Callable[[], int]:
    """Returns the number of threads that it is done with, and takes longer with one number."""

    def done() -> int:
        used = torch.get_num_threads()
        time.sleep(0.03 if used == slow_with else 0.003)
        return used

    return done


@pytest.mark.parametrize(("slow_with", "chosen"), [(None, 1), (1, 3), (3, 1)])
def test_several_threads_are_chosen_where_they_are_clearly_faster(
    slow_with: int | None, chosen: int
) -> None:
    assert Threads().choose(work(slow_with=slow_with)) == chosen
    assert torch.get_num_threads() == chosen


def test_what_was_slow_only_at_the_start_is_chosen_while_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_AGAIN_SECONDS", 0)
    chooses = Threads()
    assert chooses.choose(work(slow_with=3)) == 1
    used = [chooses.run(8, work(slow_with=1)) for _ in range(5)]
    assert used == [1, 1, 1, 3, 3]
    # A thread that computed with one takes the new number over.
    found: list[int] = []

    def other() -> None:
        torch.set_num_threads(1)
        found.append(chooses.run(8, work()))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [3]


def test_what_stays_slow_is_tried_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_AGAIN_SECONDS", 0.05)
    chooses = Threads()
    assert chooses.choose(work(slow_with=3)) == 1
    used = [chooses.run(8, work(slow_with=3)) for _ in range(60)]
    assert 1 <= used.count(3) <= 4
    assert used[-1] == 1


def test_several_are_not_compared_with_the_time_of_other_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "_AGAIN_SECONDS", 0)
    chooses = Threads()
    chooses.choose(work())
    assert [chooses.run(size, work()) for size in (1, 1, 2, 2, 3)] == [1] * 5


def test_a_predictor_answers_with_the_threads_that_it_chose(exported: Path) -> None:
    served = Predictor(export.load(exported))
    served.warm_up()
    assert served.choose_threads() in (1, 3)
    (answers,) = served.answer([np.zeros((2, 1, 4, 4), np.float32)])
    assert isinstance(answers, Answers)
    assert len(answers.output) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads that Linux shows")
def test_openmp_keeps_no_threads_for_work_in_a_thread_of_its_own() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    def compute() -> int:
        torch.ones(1000, 1000).add(1)
        return count()

    before = count()
    assert in_own_thread(compute).result() >= before + 3
    until = time.monotonic() + 10
    while count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert count() <= before
