"""How a step computes on what hardware there is; what it computes is the same.

The usual choices are on wherever they help, each can be turned off by an argument, and the log
says which are on, and why one is not.
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
    """The choices of a run.

    Attributes:
        device: Where it computes.
        dtype: What matrices are multiplied in, or None for the type of the weights.
        channels_last: Whether an image's channels are neighbours in memory.
        compile: Whether the model is compiled.
        fused: Whether the optimizer updates all weights in one kernel.
        static_graph: Whether DDP may rely on the same weights being used in every step.
    """

    device: torch.device
    dtype: torch.dtype | None
    channels_last: bool
    compile: bool
    fused: bool
    static_graph: bool

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which matrices are multiplied in `dtype`."""
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def place(self, model: nn.Module) -> nn.Module:
        """The model where and as it computes."""
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model


def choose(config: Config, device: torch.device) -> ComputeOptions:
    """Decides how to compute, sets what is set for the whole process, and says so in the log.

    Args:
        config: What was asked for.
        device: Where this rank computes.

    Returns:
        The choices.

    Raises:
        ConfigError: If something was asked for that cannot be had here.
    """
    cuda = device.type == "cuda"
    torch.backends.cudnn.benchmark = cuda and config.cudnn_benchmark
    torch.set_float32_matmul_precision("high" if cuda and config.tf32 else "highest")
    no_compile = _why_not_compile(config, cuda)
    speed = ComputeOptions(
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
        "bf16" if speed.dtype else "fp32",
        "channels last" if speed.channels_last else "channels first",
        "one kernel for all weights" if speed.fused else "not fused",
        "compiled" if speed.compile else f"not compiled, as {no_compile}",
    )
    return speed


def replicate(model: nn.Module, world: World, speed: ComputeOptions, batch: int) -> nn.Module:
    """The model as all ranks train it together.

    Args:
        model: The model, on its device.
        world: This rank.
        speed: How it computes.
        batch: The usual number of samples in one pass of a rank.

    Returns:
        What to call in place of the model; its weights are the model's own.
    """
    # Otherwise the compiler cuts the model where DDP exchanges. In one piece it is faster, though
    # the exchange overlaps nothing then: benchmarks/README.md has both, the plain loop being cut.
    torch._dynamo.config.optimize_ddp = False
    whole = Compiled(model, batch) if speed.compile else model
    if world.size == 1:
        return whole
    return DistributedDataParallel(
        whole,
        device_ids=[world.device] if world.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        bucket_cap_mb=_bucket_mb(model) if speed.compile else None,
        static_graph=speed.static_graph,
        # Batch norm's averages are rank 0's, and shared when they are used: see share_buffers.
        **_no_broadcast(),
    )


def _bucket_mb(model: nn.Module) -> float:
    """How much is exchanged at a time of gradients that all come at once.

    NCCL moves much at a time faster than little, but a bucket has to be filled before; so there are
    a few, of at least the size that DDP has by itself.
    """
    gradients = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    return max(_SMALLEST_BUCKET_MB, gradients / _BUCKETS / 2**20)


def _no_broadcast() -> dict[str, Any]:
    """What keeps DDP from sharing buffers before each pass, by the name that this torch has."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    new, old = "forward_sync_buffers", "broadcast_buffers"
    return {new if new in known else old: False}


def exchange(replica: nn.Module, wanted: bool) -> AbstractContextManager[object]:
    """A context in which ranks exchange gradients, or do not yet."""
    if wanted or not isinstance(replica, DistributedDataParallel):
        return nullcontext()
    return replica.no_sync()


class Compiled(nn.Module):
    """A model that is compiled for batches of one size; any other runs as it is.

    An epoch's last batch is mostly of another size, and not worth a minute of compiling.
    """

    def __init__(self, model: nn.Module, batch: int) -> None:
        super().__init__()
        self.model = model
        self._batch = batch
        self._compiled: object = torch.compile(model, dynamic=False)

    def forward(self, images: Tensor) -> Tensor:
        """The model's answer."""
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
    # CPUs without matrix units for it are slower in bf16.
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if able else None


def _why_not_compile(config: Config, cuda: bool) -> str:
    """Why the model is not compiled, or an empty string if it is.

    Raises:
        ConfigError: If it was asked for and there is no compiler.
    """
    if config.compile == "off":
        return "it was turned off"
    if config.compile == "auto" and not cuda:
        return "compiling takes longer than it saves on a CPU"
    lacking = _lacking_compiler(cuda)
    if lacking and config.compile == "on":
        raise ConfigError(f"--compile is on, and {lacking}; install it, or use --compile auto")
    return lacking


def _lacking_compiler(cuda: bool) -> str:
    """What torch.compile needs and is not there, or an empty string."""
    if cuda and importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    # Triton needs C for a GPU's kernels, torch C++ for those of a CPU.
    variable, names = ("CC", ("gcc", "clang")) if cuda else ("CXX", ("g++", "clang++"))
    if not any(map(shutil.which, (os.environ.get(variable, ""), *names))):
        return f"there is no compiler ({' or '.join(names)})"
    return ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
