"""The training loop of language models, under any plan. It reads from top to bottom."""

from __future__ import annotations

import dataclasses
import logging
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kfp_pytorch.training.arguments.config import LANGUAGE_PREFIX, Config
from kfp_pytorch.training.checkpoint import job_state
from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.checkpoint.job_state import State
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.faults.emergency_checkpoint import Rescue
from kfp_pytorch.training.faults.nonfinite_steps import Guard, Skipper, Stopper
from kfp_pytorch.training.faults.stopping import StopAgreement
from kfp_pytorch.training.language import export
from kfp_pytorch.training.language.text import ByteText, TextBatches, files_in, standard_library
from kfp_pytorch.training.language.trainable import StepOptions, Trainable, build
from kfp_pytorch.training.language.transformer import TransformerConfig, preset
from kfp_pytorch.training.learning_rate import learning_rate, peak_rate
from kfp_pytorch.training.lifecycle import (
    Start,
    close_epoch,
    conclude,
    diverged,
    leave,
    open_output,
    report_training,
    save,
    save_if_due,
)
from kfp_pytorch.training.parallel import compute_options
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.parallel.process_group import World
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry.metrics import History, LossMeter, Progress, fetch, mean_loss
from kfp_pytorch.training.telemetry.reports import Telemetry
from kfp_pytorch.training.telemetry.step_measurements import Instruments

LOG = logging.getLogger("kfp_pytorch.training")
# The curves that the termination message has room for.
CURVES = ("train_loss", "loss")
# Global batches of held-out text that an evaluation looks at, at most.
_MOST_EVALUATED = 200


@dataclass(frozen=True)
class Job:
    """All that a training run works with.

    Attributes:
        config: What it was told.
        world: This rank.
        folder: Where everything is written.
        shape: The model's shape.
        batches: This rank's part of the text that it trains on.
        held_out: The text that it is judged by.
        trainable: The model with its optimizer.
        state: What changes, and is kept in checkpoints.
        stop: Whether the ranks agreed to stop.
        telemetry: Where reports go.
        instruments: What measures how steps are computed.
        guard: What takes the optimizer's steps, and finds those that are no finite numbers.
        checkpoints: What writes the state, and put it back at the start.
        rescue: What saves the last step when another rank has gone.
    """

    config: Config
    world: World
    folder: Folder
    shape: TransformerConfig
    batches: TextBatches
    held_out: ByteText
    trainable: Trainable
    state: State
    stop: StopAgreement
    telemetry: Telemetry
    instruments: Instruments
    guard: Guard
    checkpoints: Checkpoints
    rescue: Rescue

    @property
    def is_over(self) -> bool:
        """Whether training is done."""
        return self.state.progress.epoch >= self.config.epochs or self._has_reached_limit

    @property
    def epoch_is_over(self) -> bool:
        """Whether the text was read once more, or training ends within the epoch."""
        return self.batches.epoch >= self.state.progress.epoch + 1 or self._has_reached_limit

    @property
    def _has_reached_limit(self) -> bool:
        return 0 < self.config.max_steps <= self.state.progress.step

    @property
    def global_batch(self) -> int:
        """Windows of a step over all ranks."""
        return self.config.batch_size * self.trainable.plan.data_ranks

    def windows(self) -> int:
        """Windows of a batch that this rank has the loss of: none before a pipeline's end."""
        ranks_a_stage = self.world.size // self.trainable.plan.pp
        at_end = self.world.rank // ranks_a_stage == self.trainable.plan.pp - 1
        return self.config.batch_size if at_end else 0

    def batch_of(self, step: int, rank: int) -> str:
        """What a rank computed in a recent step, for a person to look at."""
        part = self.trainable.plan.data_rank(rank)
        place = f"part {part} of the global batch of step {step}"
        return f"epoch {self.batches.epoch:.3f}, rank {rank}, {place}"


@dataclass(frozen=True)
class _Limited:
    """The optimizer's step, after the gradients' norm was limited."""

    trainable: Trainable
    instruments: Instruments

    def norm(self) -> Tensor:
        norm = self.trainable.clip()
        self.instruments.gradient_norm(norm)
        return norm

    def step(self) -> None:
        self.norm()
        self.trainable.optimizer.step()


def train(start: Start) -> dict[str, Any]:
    """Trains, evaluates and exports a language model.

    Args:
        start: What to do, where and for whom.

    Returns:
        What the termination message reports, on all ranks.

    Raises:
        Stopped: If a rank was asked to stop; a checkpoint was written.
        TrainingError: If something cannot be done, with what to do about it.
    """
    job = set_up(start)
    with job.telemetry, closing(job.checkpoints), closing(job.instruments):
        introduce(job)
        evaluation: dict[str, float] = {}
        while not job.is_over:
            train_epoch(job)
            evaluation = evaluate(job)
            finish_epoch(job, evaluation)
        return finish(job, evaluation or evaluate(job))


def set_up(start: Start) -> Job:
    """Reads the text, lays out the model, and goes on from the newest checkpoint."""
    config, world = start.config, start.world
    folder = open_output(config, world)
    shape, plan = lay_out(config, world)
    text, held_out = read_text(config, shape.seq_len)
    batches = TextBatches(
        *(text, shape.seq_len, config.batch_size),
        *(plan.data_rank(world.rank), plan.data_ranks),
        config.seed,
    )
    torch.manual_seed(config.seed * 1_000_003 + world.rank)
    trainable = build(shape, plan, world.device, step_options(config, world.device))
    state = State(
        trainable.model, trainable.optimizer, LossMeter(world), Progress(), History(), batches
    )
    # The text itself says what it is: see `TextBatches.load_state_dict`.
    checkpoints = Checkpoints(folder, config, world, state, {}, plan.data_ranks)
    checkpoints.resume()
    if plan.ddp == world.size and not plan.sharded:
        start.rescue.arm(world, lambda: job_state.position(state), checkpoints.rescue)
    instruments = Instruments(
        *(config, world, folder, trainable.model),
        lambda: float(shape.flops_per_token * shape.seq_len),
        start.heartbeat,
    )
    return Job(
        config=config,
        world=world,
        folder=folder,
        shape=shape,
        batches=batches,
        held_out=held_out,
        trainable=trainable,
        state=state,
        stop=StopAgreement(world, start.request),
        telemetry=Telemetry(config, world, folder, state.history, state.progress),
        instruments=instruments,
        guard=open_guard(world, trainable, instruments, config.skip_bad_steps),
        checkpoints=checkpoints,
        rescue=start.rescue,
    )


def lay_out(config: Config, world: World) -> tuple[TransformerConfig, ParallelPlan]:
    """The model's shape, and how the ranks share it."""
    shape = preset(config.model.removeprefix(LANGUAGE_PREFIX))
    shape = dataclasses.replace(shape, seq_len=config.seq_len or shape.seq_len)
    plan = ParallelPlan.parse(config.parallelism, world.size)
    # Over one rank nothing is split, so a job that shrinks to one can go on.
    return shape, plan if world.size > 1 else ParallelPlan()


def open_guard(world: World, trainable: Trainable, instruments: Instruments, allowed: int) -> Guard:
    """The guard of a run that limits gradients; see `finite.open_guard`."""
    limited = _Limited(trainable, instruments)
    if allowed:
        return Skipper(world, trainable.model, trainable.optimizer, allowed, limited.norm)
    return Stopper(world, limited)


def read_text(config: Config, seq_len: int) -> tuple[ByteText, ByteText]:
    """The text to train on, and that to be judged by: its end, of one window at least.

    Args:
        config: The arguments.
        seq_len: Bytes of a window.

    Returns:
        The two texts.

    Raises:
        ConfigError: If a file cannot be read, or all of it is too short.
    """
    paths = [Path(name) for name in config.text_files]
    files = [f for path in paths for f in (files_in(path) if path.is_dir() else [path])]
    text, held_out = ByteText.read(files or standard_library()).split()
    if held_out.windows(seq_len) < 1:
        raise ConfigError(
            f"the twentieth of the text that is held out has {len(held_out.data)} bytes, fewer "
            f"than the {seq_len + 1} of one window; give more --text-files or a lower --seq-len"
        )
    return text, held_out


def step_options(config: Config, device: torch.device) -> StepOptions:
    """How steps compute, by what was asked for and what there is."""
    choices = compute_options.choose(config, device)
    return StepOptions(
        learning_rate=config.lr,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        microbatches=config.accumulate,
        bf16=choices.dtype is not None,
        compile=choices.compile,
        fused=choices.fused,
        static_graph=choices.static_graph,
        recompute=config.recompute,  # type: ignore[arg-type]
        seed=config.seed,
    )


def introduce(job: Job) -> None:
    """Says what will be done."""
    config, plan = job.config, job.trainable.plan
    about = {
        **dataclasses.asdict(config),
        "world_size": job.world.size,
        "plan": str(plan),
        "global_batch": job.global_batch,
        "learning_rate": peak_rate(config, plan.data_ranks),
        "windows": job.batches.windows,
        "held_out_windows": job.held_out.windows(job.shape.seq_len),
        "parameters": job.shape.parameters,
    }
    job.telemetry.note("run", about, ("loss",))
    world = job.world
    LOG.info("training %s on %s as rank %s of %s", plan, world.device, world.rank, world.size)


def train_epoch(job: Job) -> None:
    """Takes the steps that are left in the current epoch."""
    progress, seen = job.state.progress, 0
    clock = time.perf_counter()
    job.instruments.start(progress.step + 1)
    while not job.epoch_is_over:
        if job.stop.reached():
            leave(job)
        rate = train_step(job)
        job.instruments.after_step(progress.step)
        seen += job.global_batch
        if progress.step % job.config.log_every == 0:
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            report_training(job, {"lr": rate, "samples_per_second": seen / seconds})
            seen = 0
        save_if_due(job)
    job.instruments.rest()


def train_step(job: Job) -> float:
    """Takes one step of the optimizer, and tells its learning rate."""
    progress = job.state.progress
    rate = learning_rate(job.config, job.trainable.plan.data_ranks, epochs_done(job))
    for group in job.trainable.optimizer.param_groups:
        group["lr"] = rate
    batch = job.batches.peek().to(job.world.device, non_blocking=True)
    job.instruments.before_step(progress.step + 1)
    loss = job.trainable.forward_backward(batch)
    job.instruments.after_backward()
    with job.rescue.step():
        job.guard.step(progress.step + 1, loss)
        job.trainable.optimizer.zero_grad(set_to_none=True)
        job.batches.advance()
        progress.step += 1
        progress.samples += job.global_batch
        job.state.meter.add(loss, job.windows())
    return rate


def epochs_done(job: Job) -> float:
    """How far training is, as a part of all epochs: by text, or by steps if these end it."""
    config = job.config
    by_steps = job.state.progress.step / config.max_steps if config.max_steps else 0.0
    return max(job.batches.epoch, by_steps * config.epochs)


@torch.no_grad()
def evaluate(job: Job) -> dict[str, float]:
    """The mean loss on held-out text over all ranks, in nats a byte.

    Args:
        job: The job.

    Returns:
        The loss, by its name.

    Raises:
        DivergedError: If it is not a finite number.
        Stopped: If all ranks agreed to stop.
    """
    plan, config, seq_len = job.trainable.plan, job.config, job.shape.seq_len
    batches = TextBatches(
        *(job.held_out, seq_len, config.batch_size),
        *(plan.data_rank(job.world.rank), plan.data_ranks),
    )
    whole = job.held_out.windows(seq_len) // (config.batch_size * plan.data_ranks)
    meter = LossMeter(job.world)
    for number in range(1, min(max(whole, 1), _MOST_EVALUATED) + 1):
        if job.stop.reached():
            leave(job)
        loss = job.trainable.evaluate(next(batches).to(job.world.device))
        meter.add(loss, job.windows())
        job.instruments.evaluating(job.state.progress.step, number)
    job.instruments.rest()
    (totals,) = fetch(job.world.device, meter.take())
    result = mean_loss(totals)
    if result is None or not result < float("inf"):
        raise diverged(
            job,
            f"the loss on held-out text is not a finite number after step "
            f"{job.state.progress.step}; try a lower --lr than {config.lr}",
        )
    return {"loss": result}


def finish_epoch(job: Job, evaluation: dict[str, float]) -> None:
    """Reports the epoch, has a checkpoint written, and stops if that was asked."""
    progress = job.state.progress
    # What is left of the training loss belongs to the epoch that ends.
    report_training(job, {})
    if job.batches.epoch >= progress.epoch + 1:
        progress.epoch, progress.samples = progress.epoch + 1, 0
    close_epoch(job, evaluation)


def finish(job: Job, evaluation: dict[str, float]) -> dict[str, Any]:
    """Writes metrics and the export, and puts together the result."""
    job.stop.settle()
    save(job)
    job.checkpoints.wait()

    def write_export() -> dict[str, Any]:
        newest = job.checkpoints.newest()
        return export.write_export(job.folder, job.shape, newest, job.held_out)

    return conclude(job, evaluation, CURVES, write_export)
