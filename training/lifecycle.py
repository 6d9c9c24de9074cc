"""What every training loop does around its steps: open, report, check, save, stop, conclude."""

from __future__ import annotations

import logging
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.checkpoint import catalog
from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.checkpoint.job_state import State
from kfp_pytorch.training.errors import DivergedError, Stopped
from kfp_pytorch.training.faults.emergency_checkpoint import EmergencySave
from kfp_pytorch.training.faults.nonfinite_steps import Guard
from kfp_pytorch.training.faults.stopping import StopAgreement, StopRequest
from kfp_pytorch.training.faults.watchdog import Heartbeat
from kfp_pytorch.training.parallel.plan import ParallelPlan
from kfp_pytorch.training.parallel.process_group import World, on_main
from kfp_pytorch.training.storage import job_folder
from kfp_pytorch.training.storage.job_folder import Folder
from kfp_pytorch.training.telemetry.metrics import fetch, mean_loss
from kfp_pytorch.training.telemetry.reports import Telemetry
from kfp_pytorch.training.telemetry.step_measurements import StepMeasurements

LOG = logging.getLogger("kfp_pytorch.training")


@dataclass(frozen=True)
class Start:
    """What a run begins with."""

    config: Config  # the arguments
    world: World  # this rank
    request: StopRequest  # whether this process was asked to stop
    heartbeat: Heartbeat = field(default_factory=Heartbeat)  # its progress, for the watchdog
    emergency: EmergencySave = field(default_factory=EmergencySave)  # see `Job.emergency`


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """What a training loop works with; each loop adds its data and its model."""

    config: Config  # the arguments
    world: World  # this rank
    folder: Folder  # the job's folder
    state: State  # what changes, and is kept in checkpoints
    stop: StopAgreement  # whether the ranks agreed to stop
    telemetry: Telemetry  # where reports go
    measurements: StepMeasurements  # how steps are computed: times, memory, gradients
    guard: Guard  # takes the optimizer's steps, and finds those that are not finite
    checkpoints: Checkpoints  # writes the state; restored it at the start
    emergency: EmergencySave  # saves the last step when another rank is lost

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether training is done."""

    @property
    @abstractmethod
    def epoch_is_over(self) -> bool:
        """Whether no step of the current epoch is left."""

    @abstractmethod
    def batch_of(self, step: int, rank: int) -> str:
        """A description of what a rank computed in a recent step."""


def open_output(config: Config, world: World) -> Folder:
    """Opens the job's folder and checks that it can be written to; all ranks call this."""
    ParallelPlan.parse(config.parallelism, world.size)
    folder = job_folder.open_folder(config.output)
    on_main(world, lambda: job_folder.check_writable(folder))
    return folder


def report_training(job: Job, values: dict[str, float]) -> None:
    """Reports the training loss since the last report, unless training has diverged."""
    # Read together: each time that training waits for the GPU, the GPU is idle afterwards.
    tensors = job.guard.bad_steps(), job.state.meter.take(), job.measurements.last_norm()
    bad_steps, totals, (norm,) = fetch(job.world.device, *tensors)
    _check_bad_steps(job, bad_steps)
    loss = mean_loss(totals)
    if loss is not None:
        progress = job.state.progress
        if job.guard.allowed:
            values = {**values, "skipped_steps": job.guard.count}
        values, details = job.measurements.read({"train_loss": loss, **values}, norm)
        job.telemetry.report(progress.epoch + 1, progress.step, values, details)


def check_finite(job: Job) -> None:
    """Stops before a loss that is not finite gets into a checkpoint; or logs skipped steps.

    Raises DivergedError: if there were more such steps than may be skipped.
    """
    (bad_steps,) = fetch(job.world.device, job.guard.bad_steps())
    _check_bad_steps(job, bad_steps)


def _check_bad_steps(job: Job, bad_steps: Sequence[float]) -> None:
    if why := job.guard.why_stop(bad_steps, job.batch_of):
        advice = f"try a lower --lr than {job.config.lr} or a longer --warmup-epochs"
        raise diverged(job, f"{why}; {advice}, and look at these samples")


def diverged(job: Job, message: str) -> DivergedError:
    """The error of a run whose numbers are no longer finite.

    All ranks raise it; the ranks that end first must not be treated as lost.
    """
    job.emergency.disarm()
    return DivergedError(message)


def save(job: Job) -> None:
    """Starts to write a checkpoint in a thread, unless training has diverged."""
    job.measurements.idle()
    check_finite(job)
    # A run that resumes from the checkpoint does not repeat the reports before it.
    job.checkpoints.save(job.telemetry.flush_events, job.telemetry.checkpoint_saved)


def save_if_due(job: Job) -> None:
    """Saves after a step where a checkpoint is due, and prepares the memory for it before.

    After an epoch's last step `close_epoch` saves: a checkpoint from before the evaluation would
    make a resumed run report the evaluation a second time. Raises StorageError: the last failed.
    """
    step = job.state.progress.step
    job.checkpoints.check()
    if job.checkpoints.due(step) and not job.epoch_is_over:
        save(job)
        job.measurements.start(step + 1)
    else:
        job.checkpoints.prepare()


def close_epoch(job: Job, evaluation: dict[str, float]) -> None:
    """Reports an epoch's evaluation, saves where a checkpoint is due, and stops if requested."""
    progress = job.state.progress
    # If a rank is lost now, the last step is saved with this evaluation.
    with job.emergency.step():
        # Training that ends within an epoch reports that epoch, as its steps do.
        job.telemetry.report(progress.epoch + bool(progress.samples), progress.step, evaluation)
    # After the last epoch only the export is left, which is not worth another start.
    if job.stop.settle() and not job.is_over:
        save_and_stop(job)
    due = job.checkpoints.due(progress.step) or progress.epoch % job.config.checkpoint_every == 0
    if due or job.is_over:
        save(job)
    on_main(job.world, lambda: job.telemetry.flush(**_summary(job, evaluation)))


def conclude(
    job: Job,
    evaluation: dict[str, float],
    curves: Sequence[str],
    export: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """Lets rank 0 write the export, and returns the termination message on all ranks."""

    def write() -> dict[str, Any]:
        job.telemetry.finished()
        job.telemetry.flush(**_summary(job, evaluation))
        exported = export()
        if exported.get("export"):
            LOG.info("wrote the export %s/%s", job.folder.uri, exported["export"]["path"])
        return {**exported, "checkpoint": catalog.newest_step(job.folder)}

    exported = on_main(job.world, write)
    kept = {name: job.state.history.curves.get(name, []) for name in curves}
    return {**_summary(job, evaluation), **exported, "curves": kept}


def save_and_stop(job: Job) -> NoReturn:
    """Writes a checkpoint, and ends this run on all ranks. Raises Stopped: always."""
    save(job)
    job.checkpoints.wait()
    raise Stopped(
        f"asked to stop at step {job.state.progress.step}; a checkpoint was written, and a new "
        "start resumes from it"
    )


def _summary(job: Job, evaluation: dict[str, float]) -> dict[str, Any]:
    losses = job.state.history.curves.get("train_loss")
    last = {"train_loss": losses[-1][1]} if losses else {}
    rates = job.state.history.curves.get("samples_per_second")
    # The first report has the warm-up in it, and the last may be of a few steps alone.
    speed = {"samples_per_second": statistics.median(rate for _, rate in rates)} if rates else {}
    return {
        "metrics": {**evaluation, **last, **speed},
        "world_size": job.world.size,
        "step": job.state.progress.step,
        "epoch": job.state.progress.epoch,
    }
