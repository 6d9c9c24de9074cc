"""Cross-entropy directly from hidden states, a chunk of tokens at a time.

The logits of a large vocabulary are the largest tensor of a language model's step: at 16 sequences
of 2,048 tokens and 32,000 words they take 4 GB in float32, several times over. Here a chunk's
logits, loss and gradients are computed together and the logits are dropped at once, so that only
the gradients of the hidden states and of the weight are kept. No product is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CHUNK_TOKENS = 4096


@dataclass(frozen=True)
class VocabShard:
    """The rows of the weight that this rank holds."""

    first: int  # the word of row 0
    group: dist.ProcessGroup  # the ranks that hold all rows


# (hidden, weight, targets, shard) → (sum of losses, gradient of hidden, gradient of weight)
ChunkFunction = Callable[[Tensor, Tensor, Tensor, VocabShard | None], tuple[Tensor, Tensor, Tensor]]


def _log_normaliser_and_target(
    logits: Tensor, local: Tensor, shard: VocabShard | None
) -> tuple[Tensor, Tensor]:
    """Return each token's log of the sum of exponentials, and its target's logit, over all rows."""
    normaliser = logits.logsumexp(-1)
    words = logits.shape[-1]
    target = logits.gather(-1, local.clamp(0, words - 1)[:, None])[:, 0]
    if shard is None:
        return normaliser, target
    target = torch.where((local >= 0) & (local < words), target, 0.0)
    ours = torch.stack([normaliser, target])
    parts = ours.new_empty(dist.get_world_size(shard.group) * 2, ours.shape[1])
    dist.all_gather_into_tensor(parts, ours, group=shard.group)
    parts = parts.view(-1, 2, ours.shape[1])
    return parts[:, 0].logsumexp(0), parts[:, 1].sum(0)


def chunk_loss(hidden: Tensor, weight: Tensor, targets: Tensor, shard: VocabShard | None) -> Tensor:
    """Return the sum of the losses of a chunk of tokens, without gradients."""
    local = targets if shard is None else targets - shard.first
    normaliser, target = _log_normaliser_and_target((hidden @ weight.T).float(), local, shard)
    return (normaliser - target).sum()


def chunk_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, shard: VocabShard | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of the losses of a chunk of tokens, and its gradients.

    With a shard, the gradient of `hidden` is this rank's part of a sum over the ranks.
    """
    local = targets if shard is None else targets - shard.first
    logits = (hidden @ weight.T).float()
    normaliser, target = _log_normaliser_and_target(logits, local, shard)
    words = torch.arange(logits.shape[-1], device=logits.device)
    wanted = (words[None, :] == local[:, None]).to(logits.dtype)
    gradient = ((logits - normaliser[:, None]).exp() - wanted).to(hidden.dtype)
    return (normaliser - target).sum(), gradient @ weight, gradient.T @ hidden


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients with the loss; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        shard: VocabShard | None,
        gradients_of: ChunkFunction,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden)
        # Summed in float32: a bf16 sum of many products would lose small ones.
        weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        pieces = zip(_chunks(hidden), _chunks(hidden_grad), _chunks(targets), strict=True)
        for piece, piece_grad, wanted in pieces:
            loss, grad, part = gradients_of(piece, weight, wanted, shard)
            total += loss
            piece_grad.copy_(grad)
            weight_grad += part
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden_grad, weight_grad = ctx.saved_tensors
        scale = grads[0] / len(hidden_grad)
        return (
            hidden_grad * scale.to(hidden_grad.dtype),
            weight_grad * scale.to(weight_grad.dtype),
            None,
            None,
            None,
        )


def _chunks(tensor: Tensor) -> tuple[Tensor, ...]:
    """Split into chunks whose sizes differ by at most one token, for few compilations."""
    return torch.tensor_split(tensor, max(1, -(-len(tensor) // CHUNK_TOKENS)))


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    shard: VocabShard | None = None,
    gradients_of: ChunkFunction = chunk_gradients,
) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T` against `targets`.

    `weight`: the output projection, words by dimension, in the dtype of `hidden`. With a shard,
    this rank's rows of it. `targets`: the index of each token's next word. `shard`: which rows
    `weight` holds, when the words are split over ranks. The gradient of `hidden` is then this
    rank's part of a sum over the ranks. `gradients_of`: `chunk_gradients`, or a compiled form of
    it. Returns a float32 scalar on the device of `hidden`.
    """
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, shard, gradients_of)
        return loss
    pieces = zip(_chunks(hidden), _chunks(targets), strict=True)
    losses = [chunk_loss(piece, weight, wanted, shard) for piece, wanted in pieces]
    return torch.stack(losses).sum() / len(targets)
