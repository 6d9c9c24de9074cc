"""How ranks share a model: a plan such as `fsdp2=2,tp=2`, checked against ranks and model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfp_pytorch.training.arguments.parallelism import WAYS, read_sizes
from kfp_pytorch.training.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class ParallelPlan:
    """How many ranks each way of training in parallel spans; their product is the world size."""

    pp: int = 1  # stages of the pipeline
    ddp: int = 1  # replicas of the model. With FSDP, replicas of the group that shards it
    fsdp2: int = 1  # ranks that parameters, gradients and optimizer state are sharded over
    tp: int = 1  # ranks that each matrix, and between matrices each sequence, is split over
    # Whether FSDP wraps the model, also over one rank. It also replicates, where `ddp` is combined
    # with another way.
    sharded: bool = False

    @classmethod
    def parse(cls, text: str, world_size: int) -> ParallelPlan:
        """Read a plan such as `ddp`, `fsdp2=2,tp=2` or `pp=2,fsdp2`, for so many ranks.

        One way may come without a size; it takes the ranks that the others leave. Raises
        ConfigError: if the text cannot be read, or does not fit the number of ranks.
        """
        sizes = read_sizes(text)
        known = math.prod(size for size in sizes.values() if size is not None)
        has_open = None in sizes.values()
        if world_size % known or (not has_open and known != world_size):
            raise ConfigError(
                f"--parallelism {text!r} needs {'a multiple of ' if has_open else ''}{known} "
                f"ranks; there are {world_size}. Change a size, or leave one out to take the "
                "remaining ranks"
            )
        full = {way: size or world_size // known for way, size in sizes.items()}
        # DDP supports neither stages nor split matrices; FSDP over one rank replicates them.
        replicas = "ddp" in full and len(full) > 1
        return cls(**full, sharded="fsdp2" in full or replicas)

    def __str__(self) -> str:
        shown = [
            f"{way}={getattr(self, way)}"
            for way in WAYS
            if getattr(self, way) > 1 or (way == "fsdp2" and self.sharded)
        ]
        return ",".join(shown) or "ddp=1"

    @property
    def world_size(self) -> int:
        """The ranks of the plan."""
        return self.pp * self.ddp * self.fsdp2 * self.tp

    @property
    def data_ranks(self) -> int:
        """How many parts a global batch is split into."""
        return self.ddp * self.fsdp2

    def data_rank(self, rank: int) -> int:
        """Return which part of a global batch a rank works on.

        Ranks of one tensor-parallel group or of one pipeline work on the same part.
        """
        return rank // self.tp % self.data_ranks

    def mesh(self, device_type: str) -> DeviceMesh:
        """Make the mesh of all four ways, sizes of one included. Every rank calls it."""
        from torch.distributed.device_mesh import init_device_mesh

        shape = tuple(getattr(self, way) for way in WAYS)
        return init_device_mesh(device_type, shape, mesh_dim_names=WAYS)
