"""Answers batches of rows with the exported model, on a CPU or a GPU."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from kfp_pytorch.serving.errors import BadRequest, ModelFault
from kfp_pytorch.serving.export import DATATYPES, DESCRIPTION, Export
from kfp_pytorch.serving.limits import memory_limit, with_unit
from kfp_pytorch.serving.speed.cuda_graphs import Graphs
from kfp_pytorch.serving.speed.threads import Threads
from kfp_pytorch.serving.speed.tuning import tune
from kfp_pytorch.serving.tensors import NUMPY_TYPES, Array

# Rows in one call of the model: this bounds the memory that a large request takes.
MAX_BATCH = 64
WARM_UP_SIZE = 32
# Larger batches are not tried when the smaller ones took so long; a GPU tunes itself meanwhile.
WARM_UP_SECONDS = {"cpu": 2.0, "cuda": 60.0}
# So many errors in a row that are not a request's fault, and the predictor is not live.
MAX_FAULTS = 3
# Texts of torch's plain RuntimeError that mean that memory is full
# (c10/core/impl/alloc_cpu.cpp, aten's CUDABlas.cpp).
_MEMORY_FULL = re.compile(r"DefaultCPUAllocator|std::bad_alloc|CUBLAS_STATUS_ALLOC_FAILED")
# Texts of the errors of a device and its libraries, which may answer the next time.
_DEVICE_FAILED = re.compile(r"CUDA error|CUDA driver error|cuDNN error|CUDNN_STATUS|CUBLAS_STATUS")

logger = logging.getLogger("kserve")


class ModelBroken(Exception):
    """The model loaded but does not answer as `model.json` states."""


@dataclass(frozen=True)
class Answers:
    """The model's answers to rows, a row each; only a classifier's have classes."""

    output: Array  # the model's output
    classes: Array | None = None  # the indices of the most likely classes, the best first
    scores: Array | None = None  # their probabilities

    def part(self, start: int, end: int) -> Answers:
        """The answers to some of the rows."""
        return Answers(
            self.output[start:end],
            None if self.classes is None else self.classes[start:end],
            None if self.scores is None else self.scores[start:end],
        )


class Predictor:
    """An exported model that answers batches. Safe to use from several threads."""

    def __init__(
        self, export: Export, device: str = "cpu", bf16: bool = False, max_batch: int = MAX_BATCH
    ) -> None:
        self.export = export
        self.device = torch.device(device)
        self.max_batch = max_batch
        self.faults = 0  # errors in a row that are no request's fault
        self._largest = 1  # the rows of a batch that was answered at the start
        self._bf16 = bf16
        self._threads: Threads | None = None  # where their number is chosen here
        # A graph has one shape.
        has_graphs = self.device.type == "cuda" and -1 not in export.input.shape[1:]
        self._graphs = Graphs(self._compute) if has_graphs else None

    @property
    def is_live(self) -> bool:
        """Whether the model still answers: not after some faults in a row."""
        return self.faults < MAX_FAULTS

    def warm_up(self) -> None:
        """Runs the model on zeros, in batches of up to `max_batch`, which memory may make lower.

        On a CPU it is tuned before. Raises ModelBroken: it does not answer, or not as stated.
        """
        self._check_memory(2)
        self._try(2)
        if self.device.type == "cpu" and isinstance(self.export.run, torch.fx.GraphModule):
            tune(self.export.run, self._random, self._compute, self.max_batch)
        began, largest = time.perf_counter(), 0
        for size in _doubled(self.max_batch):
            try:
                self._try(size)
            except MemoryError as error:
                if not largest:
                    raise
                logger.warning("batches have at most %s rows, not %s: %s", largest, size, error)
                self.max_batch = largest
                return
            largest = self._largest = size
            if time.perf_counter() - began > WARM_UP_SECONDS[self.device.type]:
                return

    def choose_threads(self) -> int:
        """Sets and returns torch's number of threads: one, where more are hardly faster.

        They are compared again while requests are answered.
        """
        if self.device.type != "cpu":
            return torch.get_num_threads()
        threads, rows = Threads(), self._zeros(min(8, self.max_batch))
        chosen = threads.choose(lambda: self._compute(rows))
        self._threads = threads
        return chosen

    def answer(self, requests: Sequence[Array], top: int = 1) -> list[Answers | Exception]:
        """Answers several requests' rows in one batch; an error of one is that one's alone.

        `requests`: arrays of one type, and of one shape but for the rows. `top`: how many classes
        of a row. An error is a BadRequest, or MemoryError or ModelFault: not the request's fault.
        """
        try:
            answers = self._together(requests, top)
        except Exception as error:
            if len(requests) > 1:
                return [self.answer([rows], top)[0] for rows in requests]
            return [self._cause(error, len(requests[0]))]
        self.faults = 0
        finite = np.isfinite(answers.output)
        all_finite = bool(finite.all())
        found: list[Answers | Exception] = []
        start = 0
        for rows in requests:
            end = start + len(rows)
            own = finite[start:end]
            if all_finite or own.all():
                found.append(answers.part(start, end))
            else:
                row = int(own.reshape(len(rows), -1).all(axis=1).argmin())
                why = "the model's answer is not finite: values are too large"
                found.append(BadRequest(f"row {row}: {why}"))
            start = end
        return found

    def _together(self, requests: Sequence[Array], top: int) -> Answers:
        rows = self._gathered(requests)
        if len(rows) <= self.max_batch:
            output = self._call(rows)
        else:
            output = torch.cat([self._call(part) for part in torch.split(rows, self.max_batch)])
        output = output.contiguous()  # JSON is written from no other layout
        if not self.export.classes:
            return Answers(output.cpu().numpy())
        # As doubles: as floats, large FP64 numbers would be infinite.
        best = output.double().softmax(dim=1).topk(top, dim=1)
        scores, classes = best.values.float().cpu().numpy(), best.indices.cpu().numpy()
        return Answers(output.cpu().numpy(), classes, scores)

    def _gathered(self, requests: Sequence[Array]) -> torch.Tensor:
        """The rows of all requests, on the device."""
        if self.device.type == "cpu":
            return torch.from_numpy(requests[0] if len(requests) == 1 else np.concatenate(requests))
        count = sum(map(len, requests))
        dtype = torch.from_numpy(requests[0][:0]).dtype
        # A GPU copies from pinned memory by itself. torch keeps it for the next batch.
        staged = torch.empty((count, *requests[0].shape[1:]), dtype=dtype, pin_memory=True)
        np.concatenate(requests, out=staged.numpy())
        return staged.to(self.device, non_blocking=True)

    def _call(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            found = self._graphs.run(rows) if self._graphs else None
        if found is not None:
            return found
        if self._threads is None:
            return self._compute(rows)
        return self._threads.run(rows.numel(), lambda: self._compute(rows))

    def _compute(self, rows: torch.Tensor) -> torch.Tensor:
        wanted = DATATYPES[self.export.input.datatype]
        with (
            torch.inference_mode(),
            torch.autocast(
                self.device.type, torch.bfloat16, enabled=self._bf16, cache_enabled=False
            ),
        ):
            output = self.export.run(rows if rows.dtype == wanted else rows.to(wanted))
            # The type that model.json states, whatever precision computed it.
            return output.to(DATATYPES[self.export.output.datatype]) if self._bf16 else output

    def _cause(self, error: Exception, rows: int) -> Exception:
        """Whose fault an error of one request is: where zeros fail too, it is not the request's."""
        full = is_memory_full(error)
        if full and self.device.type == "cuda":
            torch.cuda.empty_cache()
        failed = not full and bool(_DEVICE_FAILED.search(str(error)))
        # As many zeros as there was memory for at the start, where memory is full.
        if not failed and self._answers_zeros(min(rows, self._largest) if full else 1):
            self.faults = 0
            if full:
                logger.warning("memory is full: %s", error)
                return MemoryError(str(error))
            stated = self.export.preprocessing
            hint = f"; {DESCRIPTION} says of its input: {stated}" if stated else ""
            return BadRequest(f"the model does not take this input: {error}{hint}")
        self.faults += 1
        logger.error("the model fails by no request's fault, %s in a row: %s", self.faults, error)
        return MemoryError(str(error)) if full else ModelFault(str(error))

    def _answers_zeros(self, rows: int) -> bool:
        try:
            output = self._call(self._zeros(rows))
            return bool(torch.isfinite(output).all())
        except Exception:
            return False

    def _zeros(self, batch: int) -> torch.Tensor:
        dtype = DATATYPES[self.export.input.datatype]
        return torch.zeros(self._shape(batch), dtype=dtype, device=self.device)

    def _random(self, batch: int) -> torch.Tensor:
        """Values as the input's, the same in every process."""
        low, high = self.export.values
        generator = torch.Generator().manual_seed(0)
        rows = low + (high - low) * torch.rand(self._shape(batch), generator=generator)
        return rows.to(DATATYPES[self.export.input.datatype])

    def _shape(self, batch: int) -> list[int]:
        """The shape of a batch, with some size where the model takes any."""
        # The longest text that the model takes may be shorter than that.
        free = min(WARM_UP_SIZE, self.export.longest or WARM_UP_SIZE)
        return [batch, *(free if size == -1 else size for size in self.export.input.shape[1:])]

    def _try(self, batch: int) -> None:
        """Runs a batch of zeros and checks the answer. Raises ModelBroken, MemoryError."""
        try:
            rows = self._zeros(batch)
            output = self._compute(rows).cpu().numpy()
            if self._graphs:
                with torch.inference_mode():
                    self._graphs.capture(rows)
        except Exception as error:
            if is_memory_full(error):
                raise MemoryError(str(error)) from error
            raise ModelBroken(f"the model fails on zeros {self._shape(batch)}: {error}") from error
        self._check_output(output, batch)

    def _check_memory(self, batch: int) -> None:
        """Compares the size of a batch with the container's limit before it is allocated."""
        shape = self._shape(batch)
        size = prod(shape) * DATATYPES[self.export.input.datatype].itemsize
        limit = memory_limit()
        if size > limit:
            raise ModelBroken(
                f"{DESCRIPTION}: inputs[0].shape is {list(self.export.input.shape)}; a batch of "
                f"{batch} takes {with_unit(size)}, and this container has {with_unit(limit)} of "
                "memory. Correct the shape, or give the predictor more memory"
            )

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


def is_memory_full(error: Exception) -> bool:
    """Whether an error of a model is that its process, or its device, has no more memory."""
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return full or bool(_MEMORY_FULL.search(str(error)))


def _doubled(largest: int) -> list[int]:
    """1, 2, 4 and so on, and the largest."""
    return [*(2**n for n in range(largest.bit_length()) if 2**n < largest), largest]
