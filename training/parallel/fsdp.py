"""FSDP2: the parameters of a model are sharded over ranks, and gathered block by block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    last: Sequence[nn.Module],
    mesh: DeviceMesh,
    dtype: torch.dtype,
    free_after_forward: bool,
) -> None:
    """Shards a model, so that one block is gathered while another computes.

    `blocks`: its blocks, each gathered alone. `last`: the modules with which backward starts,
    gathered together and kept after forward. `mesh`: the ranks to shard over, or to replicate and
    shard over. `dtype`: the type in which they compute; gradients are summed in float32.
    `free_after_forward`: whether gathered blocks are freed between forward and backward.
    """
    # Inputs are not cast: the residual stream has the type already, and positions stay float32.
    policy = MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=free_after_forward)
    if last:
        fully_shard(list(last), mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=free_after_forward)
