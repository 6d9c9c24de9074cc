"""The training loop of language models under any plan, from top to bottom."""

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

from kfp_pytorch.training import lifecycle
from kfp_pytorch.training.arguments.config import LANGUAGE_PREFIX, Config
from kfp_pytorch.training.checkpoint import job_state
from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.checkpoint.job_state import State
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.faults.nonfinite_steps import Guard, Skipper, Stopper
from kfp_pytorch.training.faults.stopping import StopAgreement
from kfp_pytorch.training.language import export
from kfp_pytorch.training.language.text import ByteText, TextBatches, files_in, standard_library
from kfp_pytorch.training.language.trainable import StepOptions, Trainable, build
from kfp_pytorch.training.language.transformer import TransformerConfig, preset
from kfp_pytorch.training.learning_rate import learning_rate, peak_rate
from kfp_pytorch.training.parallel import compute_options
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.parallel.process_group import World
from kfp_pytorch.training.telemetry.curves import History
from kfp_pytorch.training.telemetry.metrics import LossMeter, Progress, fetch, mean_loss
from kfp_pytorch.training.telemetry.reports import Telemetry
from kfp_pytorch.training.telemetry.step_measurements import StepMeasurements

LOG = logging.getLogger("kfp_pytorch.training")
# The curves that the termination message has room for.
CURVES = ("train_loss", "loss")
# Global batches of held-out text in an evaluation, at most.
_MOST_EVALUATED = 200


@dataclass(frozen=True, kw_only=True)
class Job(lifecycle.Job):
    """What this loop works with."""

    shape: TransformerConfig  # the model's shape
    batches: TextBatches  # this rank's part of the text to train on
    held_out: ByteText  # the text to evaluate on
    trainable: Trainable  # the model with its optimizer

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
        """Windows of a batch whose loss this rank has: only the last stage of a pipeline does."""
        ranks_of_a_stage = self.world.size // self.trainable.plan.pp
        is_last = self.world.rank // ranks_of_a_stage == self.trainable.plan.pp - 1
        return self.config.batch_size if is_last else 0

    def batch_of(self, step: int, rank: int) -> str:
        """A description of what a rank computed in a recent step."""
        part = self.trainable.plan.data_rank(rank)
        return (
            f"epoch {self.batches.epoch:.3f}, rank {rank}, part {part} of the global batch of "
            f"step {step}"
        )


def train(start: lifecycle.Start) -> dict[str, Any]:
    """Trains, evaluates and exports a language model. Returns the result, on all ranks."""
    job = set_up(start)
    with job.telemetry, closing(job.checkpoints), closing(job.measurements):
        _report_arguments(job)
        evaluation: dict[str, float] = {}
        while not job.is_over:
            _train_epoch(job)
            evaluation = _evaluate(job)
            _finish_epoch(job, evaluation)
        return _finish(job, evaluation or _evaluate(job))


def set_up(start: lifecycle.Start) -> Job:
    """Reads the text, builds the model, and resumes from the newest checkpoint."""
    config, world = start.config, start.world
    folder = lifecycle.open_output(config, world)
    shape, plan = _shape_and_plan(config, world)
    text, held_out = _read_text(config, shape.seq_len)
    batches = TextBatches(
        *(text, shape.seq_len, config.batch_size),
        *(plan.data_rank(world.rank), plan.data_ranks),
        config.seed,
    )
    torch.manual_seed(config.seed * 1_000_003 + world.rank)
    trainable = build(shape, plan, world.device, _step_options(config, world.device))
    state = State(
        trainable.model, trainable.optimizer, LossMeter(world), Progress(), History(), batches
    )
    # The text has its own identity: see `TextBatches.load_state_dict`.
    checkpoints = Checkpoints(folder, config, world, state, {}, plan.data_ranks)
    checkpoints.resume()
    if plan.ddp == world.size and not plan.sharded:
        start.emergency.arm(world, lambda: job_state.position(state), checkpoints.save_alone)
    measurements = StepMeasurements(
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
        measurements=measurements,
        guard=_open_guard(world, trainable, measurements, config.skip_bad_steps),
        checkpoints=checkpoints,
        emergency=start.emergency,
    )


def _shape_and_plan(config: Config, world: World) -> tuple[TransformerConfig, ParallelPlan]:
    shape = preset(config.model.removeprefix(LANGUAGE_PREFIX))
    shape = dataclasses.replace(shape, seq_len=config.seq_len or shape.seq_len)
    plan = ParallelPlan.parse(config.parallelism, world.size)
    # Over one rank nothing is split, so a job that shrinks to one can resume.
    return shape, plan if world.size > 1 else ParallelPlan()


def _open_guard(
    world: World, trainable: Trainable, measurements: StepMeasurements, allowed: int
) -> Guard:
    """Like `nonfinite_steps.open_guard`, for a run that clips gradients."""

    def clipped_norm() -> Tensor:
        norm = trainable.clip()
        measurements.gradient_norm(norm)
        return norm

    def update() -> None:
        clipped_norm()
        trainable.optimizer.step()

    if allowed:
        return Skipper(world, trainable.model, trainable.optimizer, allowed, clipped_norm)
    return Stopper(world, update)


def _read_text(config: Config, seq_len: int) -> tuple[ByteText, ByteText]:
    """The text to train on, and its end, to evaluate on: at least one window of `seq_len`."""
    paths = [Path(name) for name in config.text_files]
    files = [f for path in paths for f in (files_in(path) if path.is_dir() else [path])]
    text, held_out = ByteText.read(files or standard_library()).split()
    if held_out.windows(seq_len) < 1:
        raise ConfigError(
            f"the twentieth of the text that is held out has {len(held_out.data)} bytes, fewer "
            f"than the {seq_len + 1} of one window; give more --text-files or a lower --seq-len"
        )
    return text, held_out


def _step_options(config: Config, device: torch.device) -> StepOptions:
    compute = compute_options.choose(config, device)
    return StepOptions(
        learning_rate=config.lr,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        microbatches=config.accumulate,
        bf16=compute.dtype is not None,
        compile=compute.compile,
        fused=compute.fused,
        static_graph=compute.static_graph,
        recompute=config.recompute,  # type: ignore[arg-type]
        seed=config.seed,
    )


def _report_arguments(job: Job) -> None:
    config, plan, world = job.config, job.trainable.plan, job.world
    values = {
        **dataclasses.asdict(config),
        "world_size": world.size,
        "plan": str(plan),
        "global_batch": job.global_batch,
        "learning_rate": peak_rate(config, plan.data_ranks),
        "windows": job.batches.windows,
        "held_out_windows": job.held_out.windows(job.shape.seq_len),
        "parameters": job.shape.parameters,
    }
    job.telemetry.describe("run", values, ("loss",))
    LOG.info("training %s on %s as rank %s of %s", plan, world.device, world.rank, world.size)


def _train_epoch(job: Job) -> None:
    progress, seen = job.state.progress, 0
    clock = time.perf_counter()
    job.measurements.start(progress.step + 1)
    while not job.epoch_is_over:
        if job.stop.reached():
            lifecycle.save_and_stop(job)
        rate = train_step(job)
        job.measurements.after_step(progress.step)
        seen += job.global_batch
        if progress.step % job.config.log_every == 0:
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            lifecycle.report_training(job, {"lr": rate, "samples_per_second": seen / seconds})
            seen = 0
        lifecycle.save_if_due(job)
    job.measurements.idle()


def train_step(job: Job) -> float:
    """Takes one step of the optimizer, and returns its learning rate."""
    progress, config, plan = job.state.progress, job.config, job.trainable.plan
    # By text, or by steps if these end training.
    by_steps = progress.step / config.max_steps if config.max_steps else 0.0
    epochs_done = max(job.batches.epoch, by_steps * config.epochs)
    rate = learning_rate(config, plan.data_ranks, epochs_done)
    for group in job.trainable.optimizer.param_groups:
        group["lr"] = rate
    batch = job.batches.peek().to(job.world.device, non_blocking=True)
    job.measurements.before_step(progress.step + 1)
    loss = job.trainable.forward_backward(batch)
    job.measurements.after_backward()
    with job.emergency.step():
        job.guard.step(progress.step + 1, loss)
        job.trainable.optimizer.zero_grad(set_to_none=True)
        job.batches.advance()
        progress.step += 1
        progress.samples += job.global_batch
        job.state.meter.add(loss, job.windows())
    return rate


@torch.no_grad()
def _evaluate(job: Job) -> dict[str, float]:
    """The mean loss on held-out text over all ranks, in nats a byte."""
    plan, config, seq_len = job.trainable.plan, job.config, job.shape.seq_len
    batches = TextBatches(
        *(job.held_out, seq_len, config.batch_size),
        *(plan.data_rank(job.world.rank), plan.data_ranks),
    )
    whole = job.held_out.windows(seq_len) // (config.batch_size * plan.data_ranks)
    meter = LossMeter(job.world)
    for number in range(1, min(max(whole, 1), _MOST_EVALUATED) + 1):
        if job.stop.reached():
            lifecycle.save_and_stop(job)
        loss = job.trainable.evaluate(next(batches).to(job.world.device))
        meter.add(loss, job.windows())
        job.measurements.evaluating(job.state.progress.step, number)
    job.measurements.idle()
    (totals,) = fetch(job.world.device, meter.take())
    result = mean_loss(totals)
    if result is None or not result < float("inf"):
        raise lifecycle.diverged(
            job,
            f"the loss on held-out text is not a finite number after step "
            f"{job.state.progress.step}; try a lower --lr than {config.lr}",
        )
    return {"loss": result}


def _finish_epoch(job: Job, evaluation: dict[str, float]) -> None:
    """Reports the epoch, saves where a checkpoint is due, and stops if requested."""
    progress = job.state.progress
    # The rest of the training loss belongs to the epoch that ends.
    lifecycle.report_training(job, {})
    if job.batches.epoch >= progress.epoch + 1:
        progress.epoch, progress.samples = progress.epoch + 1, 0
    lifecycle.close_epoch(job, evaluation)


def _finish(job: Job, evaluation: dict[str, float]) -> dict[str, Any]:
    job.stop.settle()
    lifecycle.save(job)
    job.checkpoints.wait()
    return lifecycle.conclude(
        *(job, evaluation, CURVES),
        lambda: export.write_export(job.folder, job.shape, job.checkpoints.newest(), job.held_out),
    )
