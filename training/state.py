"""What a job carries from one process to the next: collected for a checkpoint, and restored."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

import torch

from kfp_pytorch.training import checkpoint, models
from kfp_pytorch.training.checkpoint import Checkpoint
from kfp_pytorch.training.config import Config
from kfp_pytorch.training.distributed import World, gather, on_main
from kfp_pytorch.training.metrics import History, LossMeter
from kfp_pytorch.training.schedule import peak_rate
from kfp_pytorch.training.storage import Folder, open_folder

LOG = logging.getLogger("kfp_pytorch.training")
# With another value of these a checkpoint's weights or position would mean something else.
_IDENTITY = ("dataset", "model", "image_size", "max_train_samples", "seed")


@dataclass
class Progress:
    """How far a job is.

    Attributes:
        epoch: Epochs that are done, their evaluation included.
        samples: Samples of the current epoch that are done, over all ranks.
        step: Steps that are done since the job's first.
    """

    epoch: int = 0
    samples: int = 0
    step: int = 0


@dataclass
class State:
    """What changes while a job trains, and so is kept in its checkpoints."""

    model: models.Classifier
    optimizer: torch.optim.Optimizer
    meter: LossMeter
    progress: Progress
    history: History


def save(folder: Folder, config: Config, world: World, state: State) -> None:
    """Writes a checkpoint from rank 0 while the others wait; then deletes old ones.

    Args:
        folder: The job's folder.
        config: What the run was told.
        world: This rank; all ranks call this together.
        state: What to keep.

    Raises:
        StorageError: On all ranks, if rank 0 cannot write.
    """
    content = {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "random": gather(world, _random_state(world)),
        "meter": state.meter.state(),
        "progress": asdict(state.progress),
        "history": state.history.curves,
    }
    about = {
        **{key: getattr(config, key) for key in _IDENTITY},
        "arguments": asdict(config),
        "world_size": world.size,
        "global_batch": config.batch_size * world.size,
        "learning_rate": peak_rate(config, world.size),
        "epoch": state.progress.epoch,
        "versions": {"torch": torch.__version__},
    }

    def write() -> str:
        name = checkpoint.save(folder, state.progress.step, content, about)
        checkpoint.prune(folder, config.keep_checkpoints)
        return name

    name = on_main(world, write)
    LOG.info("wrote the checkpoint %s", name)


def resume(folder: Folder, config: Config, world: World, state: State) -> bool:
    """Goes on from the job's newest checkpoint, or from that of the job named to start from.

    Args:
        folder: The job's folder.
        config: What the run was told.
        world: This rank; all ranks call this together.
        state: What is overwritten.

    Returns:
        Whether there was a checkpoint.

    Raises:
        CheckpointError: On all ranks, if what is there cannot be used.
    """
    found = on_main(world, lambda: _find(folder, config))
    if found is None:
        return False
    content = found.state
    models.load_weights(state.model, content["model"])
    state.optimizer.load_state_dict(content["optimizer"])
    state.meter.restore(content["meter"])
    state.progress.__dict__.update(content["progress"])
    state.history.curves.update(content["history"])
    if len(content["random"]) == world.size:
        _set_random_state(world, content["random"][world.rank])
    else:
        # There are other ranks now: what they draw has to differ from what was drawn before.
        torch.manual_seed(config.seed * 1_000_003 + world.rank + state.progress.step)
    _say_what_changed(found, config, world)
    return True


def _find(folder: Folder, config: Config) -> Checkpoint | None:
    identity = {key: getattr(config, key) for key in _IDENTITY}
    if config.resume == "never":
        checkpoint.clear(folder)
    found = checkpoint.newest(folder, identity)
    if found is not None:
        checkpoint.discard_after(folder, found.meta["step"])
    elif config.resume_from:
        found = checkpoint.newest_of_other(open_folder(config.resume_from), identity)
    return found


def _say_what_changed(found: Checkpoint, config: Config, world: World) -> None:
    LOG.info("going on from %s, at step %s", found.uri, found.meta["step"])
    here = {
        "global_batch": config.batch_size * world.size,
        "learning_rate": peak_rate(config, world.size),
    }
    for name, value in here.items():
        if found.meta.get(name) != value:
            LOG.warning("%s was %s in the checkpoint, and is %s", name, found.meta[name], value)


def _random_state(world: World) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(world.device)
    return states


def _set_random_state(world: World, states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if world.device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], world.device)
