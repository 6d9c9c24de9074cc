"""Answers requests with the exported model, in both versions of the protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kfp_pytorch.serving.export import DATATYPES, DESCRIPTION, Export
from kfp_pytorch.serving.limits import memory_limit, with_unit
from kfp_pytorch.serving.tensors import NUMPY_TYPES, BadRequest, from_nested

# Rows in one call of the model: this bounds the memory that a large request takes.
CHUNK = 64
WARM_UP_SIZE = 32
# Texts of torch's plain RuntimeError that mean that memory is full
# (c10/core/impl/alloc_cpu.cpp, aten's CUDABlas.cpp).
_MEMORY_FULL = re.compile(r"DefaultCPUAllocator|std::bad_alloc|CUBLAS_STATUS_ALLOC_FAILED")

Array = npt.NDArray[Any]


class ModelBroken(Exception):
    """The model loaded but does not answer as `model.json` states."""


@dataclass(frozen=True)
class Answers:
    """The model's answers to the rows of a request; only a classifier's have classes."""

    output: Array  # the model's output, a row each
    classes: Array | None = None  # the index of the most likely class of each row
    labels: tuple[str, ...] = ()  # the label of that class
    scores: Array | None = None  # its probability


class Predictor:
    """An exported model that answers requests."""

    def __init__(self, export: Export) -> None:
        self.export = export

    def warm_up(self) -> None:
        """Runs the model on zeros, in two batch sizes. Raises ModelBroken."""
        spec = self.export.input
        # The longest text that the model takes may be shorter than that.
        free = min(WARM_UP_SIZE, self.export.longest or WARM_UP_SIZE)
        sizes = [free if size == -1 else size for size in spec.shape[1:]]
        for batch in (2, 1):
            self._check_memory([batch, *sizes])
            try:
                output = self._run(torch.zeros([batch, *sizes], dtype=DATATYPES[spec.datatype]))
            except Exception as error:
                raise ModelBroken(f"the model fails on zeros {[batch, *sizes]}: {error}") from error
            self._check_output(output, batch)

    def answer(self, rows: Array) -> Answers:
        """Runs the model on rows of its own type and shape.

        Raises BadRequest: the model does not take them, or its answer is not finite. Raises
        MemoryError: there is not enough memory for these rows, as they are or just now.
        """
        tensor = torch.from_numpy(rows)
        starts = range(0, len(tensor), CHUNK)
        try:
            output = np.concatenate([self._run(tensor[start : start + CHUNK]) for start in starts])
        except (AssertionError, IndexError, RuntimeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError) or _MEMORY_FULL.search(str(error)):
                raise MemoryError(str(error)) from error
            # It answered the warm-up, so the input is at fault: a token that the model does not
            # know, or a text that is too long.
            stated = self.export.preprocessing
            hint = f"; {DESCRIPTION} says of its input: {stated}" if stated else ""
            raise BadRequest(f"the model does not take this input: {error}{hint}") from error
        finite = np.isfinite(output.reshape(len(output), -1)).all(axis=1)
        if not finite.all():
            row = int(finite.argmin())
            raise BadRequest(f"row {row}: the model's answer is not finite: values are too large")
        return self._classify(output) if self.export.classes else Answers(output)

    def answer_v1(self, payload: Any) -> dict[str, Any]:
        """Answers the body of a V1 request with `predictions`, one for each instance."""
        if not isinstance(payload, dict) or "instances" not in payload:
            raise BadRequest('the body must be a JSON object with "instances": [...]')
        answers = self.answer(from_nested(payload["instances"], self.export.input, "instances"))
        if answers.classes is None or answers.scores is None:
            return {"predictions": answers.output.tolist()}
        rows = zip(answers.classes.tolist(), answers.labels, answers.scores.tolist(), strict=True)
        return {"predictions": [{"class": c, "label": name, "score": s} for c, name, s in rows]}

    def outputs(self, answers: Answers) -> dict[str, tuple[str, Array]]:
        """Datatype and values of the tensors of a V2 response, by name."""
        own = self.export.output
        named = {own.name: (own.datatype, answers.output)}
        if answers.classes is None or answers.scores is None:
            return named
        return {
            "class": ("INT64", answers.classes),
            "label": ("BYTES", np.array(answers.labels, dtype=np.object_)),
            "score": ("FP32", answers.scores),
        } | named

    def _check_memory(self, shape: list[int]) -> None:
        """Compares the size of a tensor with the container's limit before it is allocated."""
        size = prod(shape) * DATATYPES[self.export.input.datatype].itemsize
        limit = memory_limit()
        if size > limit:
            raise ModelBroken(
                f"{DESCRIPTION}: inputs[0].shape is {list(self.export.input.shape)}; a batch of "
                f"{shape[0]} takes {with_unit(size)}, and this container has {with_unit(limit)} of "
                "memory. Correct the shape, or give the predictor more memory"
            )

    def _run(self, rows: torch.Tensor) -> Array:
        with torch.inference_mode():
            return self.export.run(rows).numpy()

    def _check_output(self, output: Array, batch: int) -> None:
        wanted = (batch, *self.export.output.shape[1:])
        fits = output.ndim == len(wanted) and all(
            want in (-1, size) for want, size in zip(wanted, output.shape, strict=True)
        )
        if not fits:
            raise ModelBroken(
                f"the model gives {list(output.shape)} where {list(wanted)} is stated"
            )
        stated = self.export.output.datatype
        if output.dtype != NUMPY_TYPES[stated]:
            raise ModelBroken(f"the model gives {output.dtype} where {stated} is stated")
        if not np.isfinite(output).all():
            raise ModelBroken("the model gives NaN or infinity for an input of zeros")
        classes = len(self.export.classes)
        if classes and (output.ndim != 2 or output.shape[1] != classes):
            raise ModelBroken(
                f"the model gives {list(output.shape)} for {classes} classes: it must give one "
                f"number for each class"
            )

    def _classify(self, output: Array) -> Answers:
        # As doubles: as floats, large FP64 numbers would be infinite.
        best = torch.from_numpy(output).double().softmax(dim=1).max(dim=1)
        scores, classes = best.values.float().numpy(), best.indices.numpy()
        labels = tuple(self.export.classes[index] for index in classes)
        return Answers(output, classes, labels, scores)
