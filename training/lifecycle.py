"""What every training loop does around its steps: begin, report, check, save, stop, sum up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.checkpoint.job_state import State
from kfp_pytorch.training.errors import DivergedError, Stopped
from kfp_pytorch.training.faults.emergency_checkpoint import Rescue
from kfp_pytorch.training.faults.nonfinite_steps import Guard
from kfp_pytorch.training.faults.stopping import StopAgreement, StopRequest
from kfp_pytorch.training.faults.watchdog import Heartbeat
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.parallel.process_group import World, on_main
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry.metrics import fetch, mean_loss
from kfp_pytorch.training.telemetry.reports import Telemetry
from kfp_pytorch.training.telemetry.step_measurements import Instruments

LOG = logging.getLogger("kfp_pytorch.training")


@dataclass(frozen=True)
class Start:
    """What a run begins with.

    Attributes:
        config: What to do.
        world: This rank among all.
        request: Whether somebody asked this process to stop.
        heartbeat: What is told how far this rank is, for a watchdog to look at.
        rescue: What is told how to save the last step, and does so when another rank has gone.
    """

    config: Config
    world: World
    request: StopRequest
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    rescue: Rescue = field(default_factory=Rescue)


class Running(Protocol):
    """What a loop works with, whatever it trains; see `train.Job` and `language.Job`."""

    @property
    def config(self) -> Config: ...  # noqa: D102
    @property
    def world(self) -> World: ...  # noqa: D102
    @property
    def state(self) -> State: ...  # noqa: D102
    @property
    def stop(self) -> StopAgreement: ...  # noqa: D102
    @property
    def telemetry(self) -> Telemetry: ...  # noqa: D102
    @property
    def instruments(self) -> Instruments: ...  # noqa: D102
    @property
    def guard(self) -> Guard: ...  # noqa: D102
    @property
    def checkpoints(self) -> Checkpoints: ...  # noqa: D102
    @property
    def rescue(self) -> Rescue: ...  # noqa: D102

    @property
    def is_over(self) -> bool:
        """Whether training is done."""

    @property
    def epoch_is_over(self) -> bool:
        """Whether no step of the current epoch is left."""

    def batch_of(self, step: int, rank: int) -> str:
        """What a rank computed in a recent step, for a person to look at."""


def open_output(config: Config, world: World) -> Folder:
    """The job's folder, before anything is loaded that would be in vain; all ranks call it.

    Args:
        config: What the run was told.
        world: This rank.

    Returns:
        The folder; it can be written to.

    Raises:
        ConfigError: If there are not as many ranks as the plan has places.
        StorageError: On all ranks, if the folder cannot be written to.
    """
    ParallelPlan.parse(config.parallelism, world.size)
    folder = job_folder.open_folder(config.output)
    on_main(world, lambda: job_folder.check_writable(folder))
    return folder


def report_training(job: Running, values: dict[str, float]) -> None:
    """Reports the training loss since the last report, unless training has diverged."""
    # Asked for together: whenever training waits for the GPU, that stands still afterwards.
    asked = job.guard.places(), job.state.meter.take(), job.instruments.last_norm()
    places, totals, (norm,) = fetch(job.world.device, *asked)
    _judge(job, places)
    loss = mean_loss(totals)
    if loss is not None:
        progress = job.state.progress
        if job.guard.allowed:
            values = {**values, "skipped_steps": job.guard.count}
        values, details = job.instruments.read({"train_loss": loss, **values}, norm)
        job.telemetry.report(progress.epoch + 1, progress.step, values, details)


def check_finite(job: Running) -> None:
    """Stops before a loss that is not finite gets into a checkpoint; or says what was skipped.

    Args:
        job: The job.

    Raises:
        DivergedError: If there were more such steps than may be skipped.
    """
    (places,) = fetch(job.world.device, job.guard.places())
    _judge(job, places)


def _judge(job: Running, places: Sequence[float]) -> None:
    bad, allowed = job.guard.found(places), job.guard.allowed
    for number, (step, rank) in enumerate(bad, job.guard.count - len(bad) + 1):
        what = f"the loss of step {step} is not a finite number: {job.batch_of(step, rank)}"
        if number > allowed:
            after = f", and {allowed} steps were skipped before" if allowed else ""
            raise diverged(
                job,
                f"{what}{after}; try a lower --lr than {job.config.lr} or a longer "
                "--warmup-epochs, and look at these samples",
            )
        LOG.warning("skipped step %s of at most %s: %s", number, allowed, what)


def diverged(job: Running, what: str) -> DivergedError:
    """The error of a run whose numbers are no longer finite.

    Ranks that raise it miss each other as they leave, and must not take that for a loss.
    """
    job.rescue.disarm()
    return DivergedError(what)


def save(job: Running) -> None:
    """Has a checkpoint written while training goes on, unless training has diverged."""
    job.instruments.rest()
    check_finite(job)
    # A start that goes on from the checkpoint reports nothing of what came before it.
    job.checkpoints.save(job.telemetry.keep, job.telemetry.saved)


def save_if_due(job: Running) -> None:
    """Saves after a step where it is time to, and gets ready for it before.

    After an epoch's last step, `close_epoch` does: what goes on from before the evaluation would
    report it a second time.

    Args:
        job: The job.

    Raises:
        StorageError: If the last checkpoint could not be written.
    """
    step = job.state.progress.step
    job.checkpoints.check()
    if job.checkpoints.due(step) and not job.epoch_is_over:
        save(job)
        job.instruments.start(step + 1)
    else:
        job.checkpoints.prepare()


def close_epoch(job: Running, evaluation: dict[str, float]) -> None:
    """Reports how an epoch ended, saves where it is time to, and stops if that was asked."""
    progress = job.state.progress
    # Where a rank is lost now, the last step is kept as one of an epoch that was judged.
    with job.rescue.step():
        # Training that ends within an epoch is judged in that one, as its steps are.
        job.telemetry.report(progress.epoch + bool(progress.samples), progress.step, evaluation)
    # After the last epoch only the export is left, which is not worth another start.
    if job.stop.settle() and not job.is_over:
        leave(job)
    due = job.checkpoints.due(progress.step) or progress.epoch % job.config.checkpoint_every == 0
    if due or job.is_over:
        save(job)
    on_main(job.world, lambda: job.telemetry.flush(**summary(job, evaluation)))


def conclude(
    job: Running,
    evaluation: dict[str, float],
    curves: Sequence[str],
    export: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Has the export written by rank 0, and puts together the result.

    Args:
        job: What was trained.
        evaluation: The last one.
        curves: The names of those that the termination message has room for.
        export: Writes the export, and says what is to be told of it.

    Returns:
        What the termination message reports, on all ranks.
    """

    def write() -> dict[str, Any]:
        job.telemetry.finished()
        job.telemetry.flush(**summary(job, evaluation))
        return export()

    exported = on_main(job.world, write)
    kept = {name: job.state.history.curves.get(name, []) for name in curves}
    return {**summary(job, evaluation), **exported, "curves": kept}


def leave(job: Running) -> NoReturn:
    """Writes a checkpoint, and ends this run on all ranks.

    Args:
        job: The job.

    Raises:
        Stopped: Always.
    """
    save(job)
    job.checkpoints.wait()
    raise Stopped(
        f"asked to stop at step {job.state.progress.step}; a checkpoint was written, and a new "
        "start goes on from it"
    )


def summary(job: Running, evaluation: dict[str, float]) -> dict[str, Any]:
    """The state of things in a few numbers."""
    losses = job.state.history.curves.get("train_loss")
    metrics = dict(evaluation)
    if losses:
        metrics["train_loss"] = losses[-1][1]
    return {
        "metrics": metrics,
        "world_size": job.world.size,
        "step": job.state.progress.step,
        "epoch": job.state.progress.epoch,
    }
