"""Explains answers: how much each number of an input adds to them, by integrated gradients.

They are Captum's: the mean of the gradients at points from a baseline to the input, times the
distance between the two (https://arxiv.org/abs/1703.01365).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch

from kfp_pytorch.serving.errors import BadRequest, DeadlineExceeded, NotFound
from kfp_pytorch.serving.export import DATATYPES, Export
from kfp_pytorch.serving.predictor import Answers, Predictor, is_memory_full
from kfp_pytorch.serving.tensors import Array

# How many points there are on the way, and how many are computed at once: what a layer keeps for
# its gradient takes memory for each.
STEPS, MAX_STEPS, POINTS_AT_ONCE = 32, 256, 8
MAX_INSTANCES = 16
# Of torch's errors where a model has an operation without a gradient on the way to its output.
_NO_GRADIENT = re.compile(
    r"does not require grad|not have been used in the graph|derivative for .* is not implemented"
)


@dataclass(frozen=True)
class Wish:
    """What a request says of its explanations."""

    target: int | None = None  # the number of the output to explain; by default the largest
    steps: int = STEPS
    baseline: float | None = None  # of all numbers of the input; by default the smallest there is


@dataclass(frozen=True)
class Explanation:
    """Why the model gives one number of its output for a row."""

    target: int  # which one
    score: float  # of a classifier the probability, else the number
    attributions: Array  # of the row's shape
    delta: float  # what is missing from, or too much in, their sum: more steps make it smaller


class Explainer:
    """Explains the answers of one model. To be used from one thread at a time."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._export: Export = predictor.export
        self._dtype = DATATYPES[self._export.input.datatype]

    def check(self) -> None:
        """Raises NotFound: explanations are not installed, or not of a model as this one."""
        if importlib.util.find_spec("captum") is None:
            raise NotFound(
                "explanations need the package captum, which is not installed here: build the "
                "predictor's image with kfp-pytorch[serving,explain]"
            )
        if not self._dtype.is_floating_point:
            raise NotFound(
                f"explanations are of inputs of floats, by which there are gradients; the model "
                f"takes {self._export.input.datatype}"
            )

    def explain(
        self, parts: list[Array], wish: Wish, is_over: Callable[[], bool]
    ) -> list[Explanation]:
        """Explains the answer to each row, in order.

        `is_over`: whether nobody waits for it any more; it is asked several times a row. Raises
        BadRequest, NotFound, DeadlineExceeded, MemoryError and ModelFault.
        """
        count = sum(map(len, parts))
        if count > MAX_INSTANCES:
            raise BadRequest(f"instances: {count} are more than the {MAX_INSTANCES} of a request")
        found = []
        for rows in parts:
            for row in range(len(rows)):
                found.append(self._explained(rows[row : row + 1], wish, is_over))
        return found

    def _explained(self, row: Array, wish: Wish, is_over: Callable[[], bool]) -> Explanation:
        if is_over():
            raise DeadlineExceeded("the explanations took too long")
        # Whose fault an error of the model is, it knows.
        (answers,) = self._predictor.answer([row])
        if isinstance(answers, Exception):
            raise answers
        output = self._output_of(answers)
        target = int(output.argmax()) if wish.target is None else wish.target
        if target >= len(output):
            most = len(output) - 1
            raise BadRequest(f"parameters.target: must be a whole number from 0 to {most}")
        attributions, delta = self._attributed(row, target, wish, is_over)
        if not (np.isfinite(attributions).all() and isfinite(delta)):
            raise BadRequest("the gradient is not finite: values are too large")
        scores = np.exp(output - output.max())
        score = scores[target] / scores.sum() if self._export.classes else output[target]
        return Explanation(target, float(score), attributions, delta)

    def _output_of(self, answers: Answers) -> Array:
        if answers.output.ndim > 2:
            shape = list(self._export.output.shape)
            raise NotFound(f"explanations are of one number a class, and the model gives {shape}")
        return answers.output.reshape(-1).astype(np.float64)

    def _attributed(
        self, row: Array, target: int, wish: Wish, is_over: Callable[[], bool]
    ) -> tuple[Array, float]:
        # It takes seconds to import, which only those who ask for explanations wait for.
        from captum.attr import IntegratedGradients

        def forward(points: torch.Tensor) -> torch.Tensor:
            if is_over():
                raise DeadlineExceeded("the explanations took too long")
            return self._export.run(points).reshape(len(points), -1)

        baseline = self._export.values[0] if wish.baseline is None else wish.baseline
        try:
            attributions, delta = IntegratedGradients(forward).attribute(
                torch.tensor(row, dtype=self._dtype, device=self._predictor.device),
                baselines=baseline,
                target=target,
                n_steps=wish.steps,
                internal_batch_size=POINTS_AT_ONCE,
                return_convergence_delta=True,
            )
        except Exception as error:
            if is_memory_full(error):
                raise MemoryError(str(error)) from error
            if _NO_GRADIENT.search(str(error)):
                why = "the model's output has no gradient by its input, so there are no "
                raise NotFound(f"{why}explanations: {error}") from error
            raise
        return np.ascontiguousarray(attributions[0].float().cpu().numpy()), float(delta[0])
