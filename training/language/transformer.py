"""A decoder-only transformer: RMSNorm, rotary positions, causal attention, SwiGLU.

Each way of training it in parallel is a few lines elsewhere: blocks are kept by their number in the
whole model, a stage of a pipeline is the same class with fewer blocks, and weights depend on the
seed and their name alone, whichever rank holds which part of them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from kfp_pytorch.training.arguments.config import LANGUAGE_MODELS, Recompute
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.language import chunked_loss
from kfp_pytorch.training.telemetry.flops import transformer_flops_per_token


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a model."""

    vocab: int = 256  # words of the vocabulary: 256 for bytes
    dim: int = 64  # width of the residual stream
    layers: int = 4  # blocks
    heads: int = 4  # attention heads a block; `dim` is a multiple of it
    hidden: int = 192  # width of the feed-forward part
    seq_len: int = 64  # the longest sequence, in tokens
    rope_base: float = 10000.0  # the base of the rotary positions' wavelengths
    norm_eps: float = 1e-6  # the epsilon of RMSNorm

    def __post_init__(self) -> None:
        for name in ("vocab", "dim", "layers", "heads", "hidden", "seq_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dim % self.heads or self.head_dim % 2:
            raise ConfigError(
                f"dim={self.dim} over heads={self.heads} must give an even, whole width of a head"
            )

    @property
    def head_dim(self) -> int:
        """The width of one attention head."""
        return self.dim // self.heads

    @property
    def parameters(self) -> int:
        """The number of parameters of the whole model."""
        block = 4 * self.dim**2 + 3 * self.dim * self.hidden + 2 * self.dim
        return 2 * self.vocab * self.dim + self.layers * block + self.dim

    @property
    def flops_per_token(self) -> int:
        """Operations of forward and backward for one token of a sequence of full length."""
        return transformer_flops_per_token(
            self.parameters, self.vocab * self.dim, self.layers, self.dim, self.seq_len
        )


PRESETS = {
    "tiny": TransformerConfig(),
    "10m": TransformerConfig(dim=384, layers=6, heads=6, hidden=1024, seq_len=256),
    "125m": TransformerConfig(dim=768, layers=12, heads=12, hidden=2304, seq_len=1024),
    "1.4b": TransformerConfig(
        vocab=32000, dim=2048, layers=24, heads=16, hidden=5632, seq_len=2048
    ),
    "7b": TransformerConfig(vocab=32000, dim=4096, layers=32, heads=32, hidden=11008, seq_len=4096),
}


assert tuple(PRESETS) == LANGUAGE_MODELS  # noqa: S101 - the same names in two places


def preset(name: str) -> TransformerConfig:
    """Return a shape by its name. Raises ConfigError: there is none of that name."""
    if name not in PRESETS:
        raise ConfigError(f"no language model is called {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def rope_table(config: TransformerConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary positions, each sequence by half a head."""
    half = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    positions = torch.arange(config.seq_len, device=device, dtype=torch.float32)
    angles = torch.outer(positions, config.rope_base ** (-half / config.head_dim))
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x`, batch by sequence by heads by width, by the angles of the positions."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention.

    The rows of `qkv` are ordered by head, each with its query, key and value, so that a contiguous
    part of them is a number of whole heads.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.qkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Mix the tokens of each sequence; with heads split over ranks, this rank's heads."""
        batch, seq, _ = x.shape
        q, k, v = self.qkv(x).view(batch, seq, -1, 3, self.head_dim).unbind(3)
        q, k = _rotate(q, cos[:seq], sin[:seq]), _rotate(k, cos[:seq], sin[:seq])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, seq, -1))
        return mixed


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token by itself."""
        transformed: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return transformed


# Operations whose results are kept, not computed again.
_ATTENTION_OPS = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)


def _selective_contexts() -> Any:
    """Keep the results of attention and every second matrix product; compute the rest again."""
    products = {True: 0, False: 0}

    def policy(ctx: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        if op in _ATTENTION_OPS:
            return CheckpointPolicy.MUST_SAVE
        if op is torch.ops.aten.mm.default:
            products[ctx.is_recompute] += 1
            if products[ctx.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


class Block(nn.Module):
    """Attention and feed-forward, each on a normalised copy of the residual stream."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.recompute: Recompute = "none"

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Add both parts to the residual stream, keeping for backward what `recompute` says."""
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self._residual(x, cos, sin)
        # The checkpoint is inside the block, so that its parameters keep their names and the block
        # can be compiled with it.
        contexts = noop_context_fn if self.recompute == "full" else _selective_contexts
        y: Tensor = checkpoint(
            self._residual, x, cos, sin, use_reentrant=False, context_fn=contexts
        )
        return y

    def _residual(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return y


class Head(nn.Module):
    """The output projection and the loss in one module: the logits of all tokens are never kept."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab, config.dim))
        self.gradients_of: chunked_loss.ChunkFunction = chunked_loss.chunk_gradients

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss against `targets`, or the logits when there are none."""
        if targets is None:
            return functional.linear(hidden, self.weight.to(hidden.dtype))
        weight: Tensor = self.weight
        shard = None
        if isinstance(weight, DTensor):
            group = weight.device_mesh.get_group()
            weight = weight.to_local()
            shard = chunked_loss.VocabShard(group.rank() * len(weight), group)
        kind = hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        with torch.autocast(kind, enabled=False):
            return chunked_loss.linear_cross_entropy(
                hidden.flatten(0, -2),
                weight.to(hidden.dtype),
                targets.flatten(),
                shard,
                self.gradients_of,
            )


class Transformer(nn.Module):
    """The model, or the stage of it that holds some of its blocks.

    `config`: the shape of the whole model. `layers`: the blocks that are here; all of them by
    default. The first block comes with the embedding, the last with the head.
    """

    def __init__(self, config: TransformerConfig, layers: range | None = None) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim) if layers.start == 0 else None
        self.blocks = nn.ModuleDict({str(i): Block(config) for i in layers})
        last = layers.stop == config.layers
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps) if last else None
        self.head = Head(config) if last else None
        device = torch.get_default_device()
        cos, sin = rope_table(config, device)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: Tensor
        self.sin: Tensor

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Run the blocks that are here.

        `x`: tokens, batch by sequence; for a later stage of a pipeline, the residual stream.
        `targets`: each token's next one, for the mean loss. Returns the loss as a scalar; the
        logits without targets; for all but the last stage of a pipeline, the residual stream.
        Raises ConfigError: if the sequence is longer than the model's.
        """
        if self.embedding is not None:
            if x.shape[1] > self.config.seq_len:
                raise ConfigError(
                    f"a sequence has {x.shape[1]} tokens, more than the model's "
                    f"seq_len={self.config.seq_len}; cut it, or build the model for longer ones"
                )
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x, self.cos, self.sin)
        if self.norm is None or self.head is None:
            return x
        y: Tensor = self.head(self.norm(x), targets)
        return y

    def set_recompute(self, recompute: Recompute) -> None:
        """Choose what backward computes again: nothing, the cheap part, or whole blocks."""
        for block in self.blocks.values():
            block.recompute = recompute  # type: ignore[assignment]

    def compile_blocks(self) -> None:
        """Compile the blocks and the loss.

        The blocks' forward is compiled, not their call, so that hooks (of FSDP, say) stay outside
        of the graph; all blocks share what the first one compiled.
        """
        for block in self.blocks.values():
            block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)
        if self.head is not None:
            self.head.gradients_of = torch.compile(chunked_loss.chunk_gradients, dynamic=False)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Fill parameters and buffers in place, on the device where they are.

        Each parameter depends on the seed and its name, so that the same seed gives the same model
        however it is split over ranks. A rank draws a whole parameter and keeps its part, one at a
        time.
        """
        depth = 1 / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
                continue
            std = 0.02 * (depth if name.endswith(("out.weight", "down.weight")) else 1.0)
            generator = torch.Generator(parameter.device).manual_seed(_name_seed(seed, name))
            whole = torch.empty(parameter.shape, device=parameter.device)
            _fill(parameter, whole.normal_(0.0, std, generator=generator))
        cos, sin = rope_table(self.config, self.cos.device)
        self.cos.copy_(cos)
        self.sin.copy_(sin)


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of a whole parameter into it, without communication."""
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        part = distribute_tensor(whole, mesh, placements, src_data_rank=None)
        parameter.to_local().copy_(part.to_local())
    else:
        parameter.copy_(whole)


def _name_seed(seed: int, name: str) -> int:
    """Return a seed for one parameter, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
