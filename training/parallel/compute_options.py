"""How steps compute on the hardware that there is: precision, layout, compilation, DDP.

Each option is on where it usually helps, and can be turned off by an argument; the log has the
options, and why the model is not compiled.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.parallel.process_group import World

LOG = logging.getLogger("kfp_pytorch.training")
_BUCKETS = 4
_SMALLEST_BUCKET_MB = 25.0


@dataclass(frozen=True)
class ComputeOptions:
    """How the steps of a run compute."""

    device: torch.device  # the device of this rank
    dtype: torch.dtype | None  # in which matrices are multiplied; None for that of the weights
    channels_last: bool  # whether an image's channels are neighbours in memory
    compile: bool  # whether the model is compiled
    fused: bool  # whether the optimizer updates all weights in one kernel
    static_graph: bool  # whether DDP may assume that every step uses the same weights

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which matrices are multiplied in `dtype`."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def place(self, model: nn.Module) -> nn.Module:
        """Moves a model to the device, in the layout of images."""
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


def choose(config: Config, device: torch.device) -> ComputeOptions:
    """Chooses how to compute, sets the process's options, logs the choices. Raises ConfigError."""
    cuda = device.type == "cuda"
    torch.backends.cudnn.benchmark = cuda and config.cudnn_benchmark
    torch.set_float32_matmul_precision("high" if cuda and config.tf32 else "highest")
    no_compile = _why_not_compile(config, cuda)
    options = ComputeOptions(
        device=device,
        dtype=_dtype(config, device),
        channels_last=cuda and config.channels_last,
        compile=not no_compile,
        fused=cuda and config.fused_optimizer,
        # DDP averages wrong gradients when it skips the exchange of a part of a batch with a
        # static graph (pytorch/pytorch#187732).
        static_graph=config.static_graph and config.accumulate == 1,
    )
    LOG.info(
        "numbers: %s; layout of images: %s; optimizer: %s; model: %s",
        "bf16" if options.dtype else "fp32",
        "channels last" if options.channels_last else "channels first",
        "one kernel for all weights" if options.fused else "not fused",
        "compiled" if options.compile else f"not compiled, as {no_compile}",
    )
    return options


def replicate(model: nn.Module, world: World, options: ComputeOptions, batch: int) -> nn.Module:
    """Wraps a model so that all ranks train it together; `batch`: samples in one pass."""
    # Otherwise the compiler splits the graph where DDP exchanges. In one graph it is faster, though
    # no exchange overlaps then: benchmarks/README.md has both.
    torch._dynamo.config.optimize_ddp = False
    whole = Compiled(model, batch) if options.compile else model
    if world.size == 1:
        return whole
    return DistributedDataParallel(
        whole,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        bucket_cap_mb=_bucket_mb(model) if options.compile else None,
        static_graph=options.static_graph,
        # Batch norm's averages are rank 0's, and copied before they are used: see share_buffers.
        **_no_broadcast(),
    )


def _bucket_mb(model: nn.Module) -> float:
    """The size of DDP's buckets for gradients that all come at once.

    NCCL is faster with large buckets, but a bucket has to be full before it is exchanged; so there
    are a few, of at least DDP's default size.
    """
    gradients = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return max(_SMALLEST_BUCKET_MB, gradients / _BUCKETS / 2**20)


def _no_broadcast() -> dict[str, Any]:
    """The option by which DDP does not broadcast buffers, by its name in this torch."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    new, old = "forward_sync_buffers", "broadcast_buffers"
    return {new if new in known else old: False}


def exchange(replica: nn.Module, wanted: bool) -> AbstractContextManager[object]:
    """A context in which backward exchanges gradients over ranks, or does not."""
    if wanted or not isinstance(replica, DistributedDataParallel):
        return nullcontext()
    return replica.no_sync()


class Compiled(nn.Module):
    """A model that is compiled for one batch size; other batches run uncompiled.

    An epoch's last batch mostly has another size, and is not worth a minute of compilation.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        super().__init__()
        self.model = model
        self._batch = batch
        self._compiled: object = torch.compile(model, dynamic=False)

    def forward(self, images: Tensor) -> Tensor:
        """The model's output."""
        if callable(self._compiled) and len(images) == self._batch:
            try:
                compiled: Tensor = self._compiled(images)
            except torch._dynamo.exc.TorchDynamoException as error:
                LOG.warning("going on without compiling, which failed: %s", _first_line(error))
                self._compiled = None
            else:
                return compiled
        answer: Tensor = self.model(images)
        return answer


def _dtype(config: Config, device: torch.device) -> torch.dtype | None:
    if config.precision == "fp32":
        return None
    if config.precision == "bf16":
        return torch.bfloat16
    # CPUs without matrix units for bf16 are slower in it.
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if supported else None


def _why_not_compile(config: Config, cuda: bool) -> str:
    """Why the model is not compiled; empty if it is."""
    if config.compile == "off":
        return "it was turned off"
    if config.compile == "auto" and not cuda:
        return "compiling takes longer than it saves on a CPU"
    missing = _missing_compiler(cuda)
    if missing and config.compile == "on":
        raise ConfigError(f"--compile is on, and {missing}; install it, or use --compile auto")
    return missing


def _missing_compiler(cuda: bool) -> str:
    """What torch.compile needs and is not installed; empty if nothing."""
    if cuda and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    # Triton needs a C compiler for a GPU's kernels, torch a C++ compiler for a CPU's.
    variable, names = ("CC", ("gcc", "clang")) if cuda else ("CXX", ("g++", "clang++"))
    if not any(map(shutil.which, (os.environ.get(variable, ""), *names))):
        return f"there is no compiler ({' or '.join(names)})"
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
