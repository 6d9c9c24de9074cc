"""The model behind the queue: whose fault an error is, and what the warm-up finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kfp_pytorch.serving import export
from kfp_pytorch.serving.errors import BadRequest, ModelFault
from kfp_pytorch.serving.predictor import MAX_FAULTS, Answers, Predictor
from kfp_pytorch.serving.protocol.query import Query, size_of

IMAGE = np.zeros((1, 1, 4, 4), dtype=np.float32)


class Failing:
    """A program that fails as it is told."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self.error: Exception | None = None
        self.only_once = False
        self.largest = 10**9
        self.batches: list[int] = []

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(rows))
        if self.error is not None:
            error, self.error = self.error, None if self.only_once else self.error
            raise error
        if len(rows) > self.largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if (rows < 0).any():
            raise RuntimeError("index out of range in self")
        return self._program(rows)


@pytest.fixture
def program(exported: Path) -> Failing:
    return Failing(export.load(exported).run)


@pytest.fixture
def served(exported: Path, program: Failing) -> Predictor:
    loaded = export.load(exported)
    object.__setattr__(loaded, "run", program)
    return Predictor(loaded)


def test_a_request_that_the_model_does_not_take_does_not_fail_the_others(served: Predictor) -> None:
    good, bad, also_good = served.answer([IMAGE, IMAGE - 1, IMAGE])
    assert isinstance(good, Answers)
    assert isinstance(bad, BadRequest)
    assert "index out of range" in str(bad)
    assert isinstance(also_good, Answers)
    assert served.faults == 0


def test_an_answer_that_is_not_finite_is_that_requests_fault_alone(served: Predictor) -> None:
    huge = np.full_like(IMAGE, np.inf)
    good, bad = served.answer([IMAGE, np.concatenate([IMAGE, huge])])
    assert isinstance(good, Answers)
    assert str(bad).startswith("row 1: the model's answer is not finite")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("CUDA error: device-side assert triggered"), ModelFault),
        (torch.OutOfMemoryError("CUDA out of memory"), MemoryError),
    ],
)
def test_three_faults_in_a_row_that_are_no_requests_make_it_not_live(
    served: Predictor, program: Failing, error: Exception, kind: type[Exception]
) -> None:
    program.error = error
    for count in range(1, MAX_FAULTS + 1):
        assert served.is_live
        (found,) = served.answer([IMAGE])
        assert isinstance(found, kind)
        assert served.faults == count
    assert not served.is_live


def test_a_device_that_fails_for_a_moment_is_no_requests_fault(
    served: Predictor, program: Failing
) -> None:
    program.only_once = True
    program.error = RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
    (found,) = served.answer([IMAGE])
    assert isinstance(found, ModelFault)
    assert isinstance(served.answer([IMAGE])[0], Answers)


def test_memory_that_is_too_full_for_what_was_answered_at_the_start_ends_liveness(
    served: Predictor, program: Failing
) -> None:
    served.warm_up()
    program.largest = 4
    for _ in range(MAX_FAULTS):
        (found,) = served.answer([np.concatenate([IMAGE] * 8)])
        assert isinstance(found, MemoryError)
    assert not served.is_live


def test_an_answer_between_faults_begins_the_count_anew(
    served: Predictor, program: Failing
) -> None:
    for error in (RuntimeError("lost"), None, RuntimeError("lost"), RuntimeError("lost")):
        program.error = error
        served.answer([IMAGE])
    assert served.faults == 2
    assert served.is_live


def test_a_request_that_alone_is_too_large_for_memory_does_not_stop_the_predictor(
    served: Predictor, program: Failing
) -> None:
    program.largest = 4
    for _ in range(MAX_FAULTS):
        (found,) = served.answer([np.concatenate([IMAGE] * 5)])
        assert isinstance(found, MemoryError)
    assert served.is_live


def test_the_warm_up_tries_batches_up_to_the_largest(served: Predictor, program: Failing) -> None:
    served.max_batch = 8
    served.warm_up()
    assert program.batches == [2, 1, 2, 4, 8]


def test_a_batch_that_memory_is_too_small_for_makes_the_largest_smaller(
    served: Predictor, program: Failing
) -> None:
    program.largest = 20
    served.warm_up()
    assert served.max_batch == 16


def test_the_best_classes_come_first(served: Predictor) -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    (answers,) = served.answer([image], top=3)
    assert isinstance(answers, Answers)
    assert answers.classes is not None
    assert answers.scores is not None
    assert answers.classes.tolist() == [[3, 2, 1]]
    assert (np.diff(answers.scores) < 0).all()


def test_in_bfloat16_the_output_keeps_the_stated_type(exported: Path) -> None:
    served = Predictor(export.load(exported), bf16=True)
    served.warm_up()
    (answers,) = served.answer([IMAGE])
    assert isinstance(answers, Answers)
    assert answers.output.dtype == np.float32


def test_whole_numbers_of_8_bits_are_converted_where_the_model_runs(served: Predictor) -> None:
    image = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    small, large = served.answer([image])[0], served.answer([image.astype(np.float32)])[0]
    assert isinstance(small, Answers)
    assert isinstance(large, Answers)
    assert (small.output == large.output).all()


def test_an_answer_is_as_large_as_the_classes_or_the_output_that_is_asked_for() -> None:
    answers = Answers(np.zeros((1000, 10), np.float32), classes=np.zeros((1000, 3), np.int64))
    assert size_of(answers, Query([])) == 50_000
    assert size_of(answers, Query([], top=3)) == 150_000
    assert size_of(answers, Query([], outputs=[("logits", True)])) == 40_000
    assert size_of(Answers(answers.output), Query([])) == 40_000
