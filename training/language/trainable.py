"""Build a model for a plan, and train it step by step with the same few lines for every plan.

trainable = build(preset("1.4b"), ParallelPlan.parse("fsdp2=2,tp=2", world), device)
for batch in batches:
    loss = trainable.step(batch)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from kfp_pytorch.training.arguments.config import RECOMPUTE, Recompute
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.faults import nonfinite_steps
from kfp_pytorch.training.language import tensor_parallel
from kfp_pytorch.training.language.transformer import Transformer, TransformerConfig
from kfp_pytorch.training.parallel import compute_options
from kfp_pytorch.training.parallel.fsdp import shard
from kfp_pytorch.training.parallel.pipeline import Pipeline, stage_layers
from kfp_pytorch.training.parallel.plan import ParallelPlan

# The first supported one is used.
_ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@dataclass(frozen=True)
class StepOptions:
    """How a step computes."""

    learning_rate: float = 3e-4  # AdamW's; schedulers change it in `Trainable.optimizer`
    weight_decay: float = 0.1  # the weight decay of matrices; norms have none
    clip_norm: float = 1.0  # the largest global norm of the gradients; 0 for no limit
    microbatches: int = 1  # the parts of a rank's batch, which a pipeline overlaps
    bf16: bool = True  # whether to compute in bf16, keeping weights and sums in float32
    compile: bool = False  # whether to compile the blocks and the loss
    fused: bool = True  # whether a GPU updates all weights in one kernel
    static_graph: bool = True  # whether DDP may assume that every step uses the same weights
    recompute: Recompute = "none"  # what backward computes again instead of keeping it
    seed: int = 0  # the seed of the weights

    def __post_init__(self) -> None:
        if self.recompute not in RECOMPUTE:
            raise ConfigError(f"recompute is {self.recompute!r}; it is one of {RECOMPUTE}")
        for name in ("learning_rate", "weight_decay", "clip_norm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 or more")


class _Accumulator:
    """Runs microbatches one after the other; ranks exchange gradients in the last one only."""

    def __init__(self, model: nn.Module, microbatches: int) -> None:
        self._model = model
        self._microbatches = microbatches

    def train(self, tokens: Tensor, targets: Tensor) -> Tensor:
        count = self._microbatches
        losses = []
        pieces = zip(tokens.chunk(count), targets.chunk(count), strict=True)
        for i, (piece, wanted) in enumerate(pieces):
            with self._exchange(i == count - 1):
                loss = self._model(piece, wanted)
                (loss / count).backward()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def evaluate(self, tokens: Tensor, targets: Tensor) -> Tensor:
        count = self._microbatches
        pieces = zip(tokens.chunk(count), targets.chunk(count), strict=True)
        return torch.stack([self._model(piece, wanted) for piece, wanted in pieces]).mean()

    def _exchange(self, wanted: bool) -> contextlib.AbstractContextManager[object]:
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(wanted)
        return compute_options.exchange(self._model, wanted)


class Trainable:
    """This rank's part of a model, wrapped, with its optimizer. Made by `build`."""

    def __init__(
        self,
        model: nn.Module,
        runner: Pipeline | _Accumulator,
        plan: ParallelPlan,
        mesh: DeviceMesh | None,
        options: StepOptions,
        device: torch.device,
    ) -> None:
        self.model = model
        self.plan = plan
        self.options = options
        self.optimizer = _adamw(model, options, fused=options.fused and device.type == "cuda")
        self._runner = runner
        self._mesh = mesh
        self._device = device

    def step(self, batch: Tensor) -> Tensor:
        """Train on this rank's part of a global batch, without waiting for the device.

        `batch`: tokens, batch by one more than the sequence: each token is the target of the one
        before. Returns the loss on this rank, a scalar on the device; 0 on all but the last stage
        of a pipeline.
        """
        loss = self.forward_backward(batch)
        self.clip_and_step()
        return loss

    def forward_backward(self, batch: Tensor) -> Tensor:
        """Compute the loss and the gradients, as the first half of `step`."""
        with self._computing():
            return self._runner.train(*self._inputs_and_targets(batch))

    def evaluate(self, batch: Tensor) -> Tensor:
        """Return the loss on this rank's part of a batch, as `step` does, without training."""
        with self._computing():
            return self._runner.evaluate(*self._inputs_and_targets(batch))

    def clip_and_step(self) -> Tensor:
        """Clip the gradients, update the weights, drop the gradients; return the norm of `clip`."""
        norm = self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def clip(self) -> Tensor:
        """Clip the gradients' global norm; return the norm before, the same on all ranks."""
        norm = nonfinite_steps.gradient_norm(self.model)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if self.plan.pp > 1 and self._mesh is not None:
            squared = norm**2
            dist.all_reduce(squared, group=self._mesh.get_group("pp"))
            norm = squared.sqrt()
        if self.plan.tp > 1:
            # Sums over two dimensions of a mesh may differ in their last bit between ranks, and
            # replicated parameters would diverge.
            dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        if self.options.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(
                self.model.parameters(), self.options.clip_norm, norm
            )
        return norm

    def _inputs_and_targets(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        if batch.shape[0] % self.options.microbatches:
            raise ConfigError(
                f"a batch of {batch.shape[0]} cannot be split into "
                f"{self.options.microbatches} microbatches of one size"
            )
        # A pipeline needs contiguous microbatches.
        return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        # FSDP has its own policy of types.
        autocast = self.options.bf16 and not self.plan.sharded
        kind = self._device.type
        with (
            torch.autocast(kind, torch.bfloat16, enabled=autocast),
            sdpa_kernel(_ATTENTION, set_priority=True),
        ):
            yield


def build(
    config: TransformerConfig,
    plan: ParallelPlan,
    device: torch.device,
    options: StepOptions | None = None,
) -> Trainable:
    """Make a model, split and wrapped for a plan. Every rank of the job calls it.

    It is made on the meta device first and filled when each rank has its part, so that no rank ever
    holds the whole model. Raises ConfigError: if the plan does not fit the model or the ranks.
    """
    options = options or StepOptions()
    check_plan(plan, config, options.microbatches)
    mesh = _mesh(plan, device)
    stage = mesh.get_local_rank("pp") if mesh else 0
    with torch.device("meta"):
        model = Transformer(config, stage_layers(config.layers, plan.pp, stage))
    model.set_recompute(options.recompute)
    if mesh and plan.tp > 1:
        tensor_parallel.apply(model, mesh["tp"])
    if options.compile:
        model.compile_blocks()
    if mesh and plan.sharded:
        # Backward starts with norm and head: freed after forward, they would be gathered twice.
        shard(
            model,
            list(model.blocks.values()),
            [module for module in (model.norm, model.head) if module is not None],
            mesh["fsdp2"] if plan.ddp == 1 else mesh["ddp", "fsdp2"],
            torch.bfloat16 if options.bf16 else torch.float32,
            # A stage of a pipeline keeps gathered parameters for the next microbatch.
            free_after_forward=plan.pp == 1,
        )
    model.to_empty(device=device)
    model.init_weights(options.seed)
    wrapped: nn.Module = model
    if mesh and plan.ddp > 1 and not plan.sharded:
        static = options.static_graph and options.microbatches == 1
        wrapped = _replicate(model, mesh["ddp"], device, static)
    if mesh and plan.pp > 1:
        runner: Pipeline | _Accumulator = Pipeline(
            wrapped, options.microbatches, mesh.get_group("pp"), device
        )
    else:
        runner = _Accumulator(wrapped, options.microbatches)
    return Trainable(wrapped, runner, plan, mesh, options, device)


def check_plan(plan: ParallelPlan, config: TransformerConfig, microbatches: int) -> None:
    """Raises ConfigError if the model or its microbatches cannot be split as planned."""
    for name in ("heads", "hidden", "vocab", "seq_len"):
        value = getattr(config, name)
        if value % plan.tp:
            raise ConfigError(
                f"{name}={value} cannot be split over tp={plan.tp} ranks; "
                f"choose a tp that divides {value}"
            )
    if config.layers < plan.pp:
        raise ConfigError(
            f"{config.layers} layers cannot be split into pp={plan.pp} stages; "
            f"choose pp of at most {config.layers}"
        )
    if microbatches < 1:
        raise ConfigError(f"microbatches is {microbatches}; it must be at least 1")
    if plan.pp > 1 and microbatches < plan.pp:
        raise ConfigError(
            f"a pipeline of pp={plan.pp} stages needs at least {plan.pp} microbatches a step; "
            f"there are {microbatches}, as --accumulate says. With few of them the stages "
            "mostly wait: 4 × pp is a good start"
        )


def _mesh(plan: ParallelPlan, device: torch.device) -> DeviceMesh | None:
    """Return the plan's mesh; None for one process without a process group."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if plan.world_size != world:
        raise ConfigError(f"plan {plan} is for {plan.world_size} ranks; the job has {world}")
    if not dist.is_initialized():
        if plan.sharded:
            raise ConfigError(
                f"plan {plan}: fsdp2 needs a process group, be it of one; use torchrun"
            )
        return None
    return plan.mesh(device.type)


def _replicate(
    model: nn.Module, mesh: DeviceMesh, device: torch.device, static: bool
) -> DistributedDataParallel:
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=mesh.get_group(),
        gradient_as_bucket_view=True,
        # A static graph needs one backward for each forward, with an exchange in the first one.
        static_graph=static,
        # Weights depend on the seed alone, and need not be sent.
        init_sync=False,
    )


def _adamw(model: nn.Module, options: StepOptions, fused: bool) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=(0.9, 0.95),
        fused=fused or None,
    )
