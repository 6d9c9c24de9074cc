"""Tensor and sequence parallelism: each matrix of a transformer is split over neighbouring ranks.

Between the matrices the residual stream is split along the sequence, so that norms and additions
are computed once, not on every rank, and their activations are kept once.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, parallel
from torch.distributed.tensor.parallel import ParallelStyle

from kfp_pytorch.training.language.transformer import Head, Transformer

_SEQUENCE = Shard(1)


def apply(model: Transformer, mesh: DeviceMesh) -> None:
    """Split a model's matrices over the ranks of a 1-D mesh, which divides its dimensions."""
    ends: dict[str, ParallelStyle] = {
        "embedding": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=_SEQUENCE),
        "norm": parallel.SequenceParallel(),
        "head": _VocabularyParallel(),
    }
    here = {name: style for name, style in ends.items() if getattr(model, name) is not None}
    parallel.parallelize_module(model, mesh, here)
    if model.embedding is not None:
        model.embedding.register_forward_hook(_wait_for_exchange)
    for block in model.blocks.values():
        parallel.parallelize_module(block, mesh, _block_styles())


def _block_styles() -> dict[str, ParallelStyle]:
    return {
        "attention_norm": parallel.SequenceParallel(),
        "attention": parallel.PrepareModuleInput(
            input_layouts=(_SEQUENCE, None, None), desired_input_layouts=(Replicate(), None, None)
        ),
        "attention.qkv": parallel.ColwiseParallel(),
        "attention.out": parallel.RowwiseParallel(output_layouts=_SEQUENCE),
        "feed_forward_norm": parallel.SequenceParallel(),
        "feed_forward": parallel.PrepareModuleInput(
            input_layouts=(_SEQUENCE,), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.gate": parallel.ColwiseParallel(),
        "feed_forward.up": parallel.ColwiseParallel(),
        "feed_forward.down": parallel.RowwiseParallel(output_layouts=_SEQUENCE),
    }


class _VocabularyParallel(ParallelStyle):
    """Split the head's words, and gather the sequence before it.

    The gradient of the hidden states is a part of a sum over the ranks. Marked as such, it is
    summed and split along the sequence in one reduce-scatter.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, Head)  # noqa: S101
        split = distribute_tensor(module.weight, device_mesh, [Shard(0)])
        module.weight = nn.Parameter(split)

        def gather(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden, *rest = args
            return (_gather_sequence(hidden, device_mesh), *rest)

        module.register_forward_pre_hook(gather)
        return module


def _wait_for_exchange(_: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    """Wait for the exchange of the ranks: a compiled block would lose its gradient."""
    return output.clone()


def _gather_sequence(hidden: Tensor, mesh: DeviceMesh) -> Tensor:
    if not isinstance(hidden, DTensor):
        hidden = DTensor.from_local(hidden, mesh, [_SEQUENCE], run_check=False)
    whole: Tensor = hidden.redistribute(placements=[Replicate()]).to_local(
        grad_placements=[Partial()]
    )
    return whole
