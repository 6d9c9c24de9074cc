"""The state of a job: read for a checkpoint, and restored from one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from kfp_pytorch.training.checkpoint import tensor_files
from kfp_pytorch.training.checkpoint.catalog import Checkpoint
from kfp_pytorch.training.checkpoint.index import read_index
from kfp_pytorch.training.checkpoint.tensor_files import Tensors
from kfp_pytorch.training.errors import CheckpointError, some
from kfp_pytorch.training.parallel.process_group import World, gather
from kfp_pytorch.training.telemetry.curves import History
from kfp_pytorch.training.telemetry.metrics import LossMeter, Progress

# Optimizer state by the weights' names, not their numbers, so that another plan can load it.
_BY_NAME = StateDictOptions(flatten_optimizer_state_dict=True)


class Position(Protocol):
    """Data that has a position."""

    def state_dict(self) -> dict[str, Any]:
        """Its position, in plain values; the same on all ranks."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at a position."""


@dataclass
class State:
    """What changes while a job trains, and is kept in its checkpoints."""

    model: nn.Module  # the model, or this rank's part of it
    optimizer: torch.optim.Optimizer  # the optimizer of its weights
    meter: LossMeter  # the training loss since the last report
    progress: Progress  # how far the job is
    history: History  # the reported curves
    data: Position | None = None  # the data, if `progress` does not say its position


def tensors(state: State, world: World) -> Tensors:
    """The tensors that training changes; the optimizer's options come from the arguments."""
    random = {str(world.rank): _random_state(world)}
    if not state.optimizer.state:
        # To get a state that does not exist, as when the first step was skipped, torch would take a
        # step of the optimizer.
        model, _ = get_state_dict(state.model, ())
        return {"model": model, "random": random}
    model, optimizer = get_state_dict(state.model, state.optimizer, options=_BY_NAME)
    return {"model": model, "optimizer": _only_tensors(optimizer), "random": random}


def position(state: State) -> dict[str, Any]:
    """The position of a job, in plain values that are the same on all ranks."""
    return {
        "progress": asdict(state.progress),
        "data": state.data.state_dict() if state.data else None,
    }


def plain(state: State, position: dict[str, Any], meter: list[float]) -> dict[str, Any]:
    """The plain values of a state."""
    # A copy: training continues, and reports, while a thread writes.
    history = {name: list(points) for name, points in state.history.curves.items()}
    return {**position, "meter": meter, "history": history}


def restore(
    state: State, found: Checkpoint, world: World, seed: int, group: dist.ProcessGroup | None
) -> None:
    """Restores a state from a checkpoint; all ranks call this together.

    `group`: None for one process. On all ranks raises CheckpointError: if the checkpoint is of
    another model, optimizer or data; StorageError: if it cannot be read.
    """
    index = read_index(found.folder, found.path, found.meta["files"])
    saved = frozenset(index.state_dict_metadata)
    stepped = any(name.startswith("optimizer.") for name in saved)
    model, optimizer = get_state_dict(
        state.model, state.optimizer if stepped else (), options=_BY_NAME
    )
    wanted: Tensors = {"model": model}
    if stepped:
        wanted["optimizer"] = _only_tensors(optimizer)
    _check_names(wanted, saved, world, found.uri)
    random = _random_state(world)
    same_ranks = found.meta.get("world_size") == world.size
    same_ranks = same_ranks and all(f"random.{world.rank}.{device}" in saved for device in random)
    if same_ranks:
        wanted["random"] = {str(world.rank): random}
    tensor_files.read(found.folder, found.path, index, wanted, group)
    set_state_dict(
        state.model,
        state.optimizer if stepped else (),
        model_state_dict=model,
        optim_state_dict={**optimizer, **wanted.get("optimizer", {})},
        options=_BY_NAME,
    )
    try:
        _restore_plain(state, found.meta["carried"], found.step)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{found.uri} does not say where it was ({type(error).__name__}: {error}); its "
            "meta.json was changed: delete it, and an older one is used"
        ) from error
    if same_ranks:
        _set_random_state(world, random)
    else:
        # Another number of ranks: their random numbers have to differ from those before.
        torch.manual_seed(seed * 1_000_003 + world.rank + state.progress.step)


def _restore_plain(state: State, carried: dict[str, Any], step: int) -> None:
    total, count = carried["meter"]
    state.meter.restore([float(total), float(count)])
    progress = {name: carried["progress"][name] for name in asdict(state.progress)}
    wrong = any(type(value) is not int or value < 0 for value in progress.values())
    if wrong or progress["step"] != step:
        raise ValueError(f"the position {progress} after step {step}")
    state.progress.__dict__.update(progress)
    curves = carried["history"].items()
    state.history.curves.update({name: [(s, v) for s, v in points] for name, points in curves})
    if state.data is not None:
        state.data.load_state_dict(carried["data"] or {})


def _only_tensors(values: dict[str, Any]) -> Tensors:
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _check_names(wanted: Tensors, saved: frozenset[str], world: World, where: str) -> None:
    """Refuses a checkpoint whose tensors are not those of model and optimizer on all ranks."""
    ours = {f"{part}.{name}" for part, values in wanted.items() for name in values}
    wanted_here = set().union(*gather(world, ours))
    kept = {name for name in saved if not name.startswith("random.")}
    missing, extra = sorted(wanted_here - kept), sorted(kept - wanted_here)
    if missing or extra:
        raise CheckpointError(
            f"{where} does not fit the model and the optimizer: missing {some(missing)}; "
            f"unknown {some(extra)}; go on with the arguments that it was made with, such as "
            "--momentum, use another folder, or pass --resume never to delete it and start again"
        )


def _random_state(world: World) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(world.device)
    return states


def _set_random_state(world: World, states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], world.device)
