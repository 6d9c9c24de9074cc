"""CPU memory that a job's state is copied to while training continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from kfp_pytorch.training.checkpoint.tensor_files import Tensors


class Staging:
    """Copies a state, again and again to the same memory.

    The memory is allocated by `prepare`, or else for the first copy, and pinned where there is a
    GPU. On a GPU copies run beside training, which waits for them only before it changes what is
    copied: before the next forward pass for buffers, such as batch norm's averages, and before the
    optimizer's next step for everything else.
    """

    def __init__(
        self, device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Allocates no memory yet. The state has the tensors of `model` under that name."""
        self._buffers = {f"model.{name}" for name, _ in model.named_buffers()}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=self._stream is not None,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=self._stream is not None,
            )
        )
        self._copied: Tensors | None = None
        self._sources: list[Tensor] = []
        optimizer.register_step_pre_hook(lambda *_: self._wait_for_copy())

    @torch.no_grad()
    def prepare(self, tensors: Tensors) -> None:
        """Allocates the memory for copies of such tensors, while training may change them.

        Any thread may call it, but not during `copy`. Pinning memory takes long.
        """
        # On the stream of training, its kernels would wait for these copies.
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            self._copied = self._stager.stage(tensors)  # type: ignore[assignment]

    @torch.no_grad()
    def copy(self, tensors: Tensors) -> Tensors:
        """Returns copies, complete after `finish`; the next call overwrites them."""
        parts = dict(local_parts(tensors))
        copies = dict(local_parts(self._copied or {}))
        if {n: (p.shape, p.dtype) for n, p in parts.items()} != {
            n: (p.shape, p.dtype) for n, p in copies.items()
        }:
            self._copied = self._stager.stage(tensors)  # type: ignore[assignment]
        elif self._stream is None:
            _copy(parts, copies)
        else:
            self._copy_beside(self._stream, parts, copies)
        return self._copied  # type: ignore[return-value]

    def finish(self) -> None:
        """Waits until the last copy is complete; any thread may call it."""
        if self._stream is not None:
            self._stream.synchronize()
        self._sources = []

    def _copy_beside(
        self, stream: torch.cuda.Stream, parts: dict[str, Tensor], copies: dict[str, Tensor]
    ) -> None:
        # Tensors that another stream reads must not be freed before.
        self._sources = list(parts.values())
        buffers = {name: part for name, part in parts.items() if name in self._buffers}
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _copy(buffers, copies)
            copied = stream.record_event()
            _copy({name: part for name, part in parts.items() if name not in buffers}, copies)
        torch.cuda.current_stream().wait_event(copied)

    def _wait_for_copy(self) -> None:
        """Lets the next kernels of training wait for the last copy."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


def local_parts(tensors: Tensors, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """This rank's part of each tensor, with its full name."""
    for name, value in tensors.items():
        if isinstance(value, dict):
            yield from local_parts(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value.to_local() if isinstance(value, DTensor) else value


def _copy(parts: dict[str, Tensor], copies: dict[str, Tensor]) -> None:
    for name, part in parts.items():
        copies[name].copy_(part, non_blocking=True)
