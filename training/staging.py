"""Memory of the CPU that a job's state is copied to while training waits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from kfp_pytorch.training.tensor_files import Tensors


class Staging:
    """Copies a state aside, again and again.

    Its memory is made for the first copy, and pinned where there is a GPU, so that later ones go at
    the speed of the bus.
    """

    def __init__(self, device: torch.device) -> None:
        """Makes no memory yet.

        Args:
            device: Where the state is.
        """
        self._cuda = device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=self._cuda,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=self._cuda,
            )
        )
        self._copied: Tensors | None = None

    @torch.no_grad()
    def copy(self, tensors: Tensors) -> Tensors:
        """Copies tensors, and waits until that is done.

        Args:
            tensors: Tensors by name, on any device.

        Returns:
            Their copies; the next call overwrites them.
        """
        parts = dict(local_parts(tensors))
        copies = dict(local_parts(self._copied or {}))
        if {n: (p.shape, p.dtype) for n, p in parts.items()} != {
            n: (p.shape, p.dtype) for n, p in copies.items()
        }:
            self._copied = self._stager.stage(tensors)  # type: ignore[assignment]
            return self._copied  # type: ignore[return-value]
        for name, part in parts.items():
            copies[name].copy_(part, non_blocking=self._cuda)
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        return self._copied  # type: ignore[return-value]


def local_parts(tensors: Tensors, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """What this rank holds of each tensor, with its full name."""
    for name, value in tensors.items():
        if isinstance(value, dict):
            yield from local_parts(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value.to_local() if isinstance(value, DTensor) else value
