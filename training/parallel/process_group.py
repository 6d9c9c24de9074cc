"""The process group of a job: this rank, and what ranks do together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from kfp_pytorch.training.entry.torchrun import LOOPBACK_ADDRESSES
from kfp_pytorch.training.errors import ConfigError, Stopped, TrainingError

T = TypeVar("T")
_AGENT_STORE_ENV = "TORCHELASTIC_USE_AGENT_STORE"
_STORE_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class World:
    """This rank, and the number of ranks."""

    rank: int  # this process among all, from 0
    local_rank: int  # this process among those of its node, from 0
    size: int  # the number of processes
    device: torch.device  # the device of this process

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0


ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


def pick_device(local_rank: int) -> torch.device:
    """The device of a rank: the GPU of its *local* rank, or the CPU where there is none.

    Raises ConfigError: if there are GPUs, but fewer than processes on this node.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"local rank {local_rank} has no GPU: this node shows {count}; "
            "start as many processes as there are GPUs (nproc_per_node)"
        )
    return torch.device("cuda", local_rank)


@contextmanager
def joined(timeout: float, joining: AbstractContextManager[None] | None = None) -> Iterator[World]:
    """A context with this rank in torchrun's process group; without torchrun, alone.

    `timeout`: seconds that a rank waits for the others in one exchange; `joining`: a context that
    lasts while this rank waits for the others to join.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    world = World(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=local_rank,
        size=int(os.environ.get("WORLD_SIZE", "1")),
        device=pick_device(local_rank),
    )
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    if world.size == 1:
        yield world
        return
    _bind_to_loopback()
    # Flags and Python objects use gloo, so that they never wait for the GPU.
    backend = "cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo"
    with joining or nullcontext():
        options = _own_prefix_after_restart(world, timedelta(seconds=timeout))
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **options)
    try:
        yield world
    except Stopped:
        # All ranks stop together.
        dist.destroy_process_group()
        raise
    # Not after an error: the process ends without waiting for the other ranks.
    dist.destroy_process_group()


def sum_over_ranks(world: World, values: torch.Tensor) -> torch.Tensor:
    """The sum of each rank's tensor, in place; it is the same on all ranks."""
    if world.size > 1:
        dist.all_reduce(values)
    return values


def broadcast_from_main(world: World, value: T) -> T:
    """Rank 0's value, on all ranks."""
    if world.size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def gather(world: World, value: T) -> list[T]:
    """Every rank's value in the order of ranks, on all ranks."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def on_main(world: World, action: Callable[[], T]) -> T:
    """Runs an action without communication on rank 0; all get its result or TrainingError."""
    value, error = broadcast_from_main(world, _attempt(action) if world.is_main else (None, None))
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def once_per_node(world: World, action: Callable[[], T]) -> None:
    """Runs an action without communication on a rank of each node; all raise its error."""
    error = _attempt(action)[1] if world.local_rank == 0 else None
    for failed in gather(world, error):
        if failed is not None:
            raise failed


def own_store(world: World) -> TCPStore | None:
    """A new connection, for a thread, to the store of the rendezvous; None for one rank.

    Under torchrun the store is in an agent, and outlives the ranks.
    """
    if world.size == 1:
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)


def share_buffers(world: World, module: torch.nn.Module) -> None:
    """Copies rank 0's buffers, such as batch norm's, to all ranks: all evaluate one model."""
    if world.size > 1:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)


def _own_prefix_after_restart(world: World, timeout: timedelta) -> dict[str, Any]:
    """Options for ranks that torchrun has started again, if it keeps one store for all starts.

    The store still has the keys of the ranks before.
    """
    starts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if starts == "0" or os.environ.get(_AGENT_STORE_ENV) != str(True):
        return {}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timeout)
    return {
        "store": PrefixStore(f"start_{starts}", store),
        "rank": world.rank,
        "world_size": world.size,
    }


def _attempt(action: Callable[[], T]) -> tuple[T | None, TrainingError | None]:
    try:
        return action(), None
    except TrainingError as error:
        return None, error


def _bind_to_loopback() -> None:
    """Binds gloo to the loopback device if all ranks are on this machine."""
    local = os.environ.get("MASTER_ADDR", "") in LOOPBACK_ADDRESSES
    if local and os.path.isdir("/sys/class/net/lo"):  # noqa: PTH112
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
