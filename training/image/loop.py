"""The training loop of image classifiers, from top to bottom; each concern is its own module."""

from __future__ import annotations

import itertools
import logging
import math
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kfp_pytorch.training import lifecycle
from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.checkpoint import job_state
from kfp_pytorch.training.checkpoint.checkpoints import Checkpoints
from kfp_pytorch.training.checkpoint.job_state import State
from kfp_pytorch.training.data import datasets, device_loader
from kfp_pytorch.training.data.datasets import ImageData, Split, split_evenly
from kfp_pytorch.training.data.decode import LEFT_OUT
from kfp_pytorch.training.data.device_loader import DeviceLoader
from kfp_pytorch.training.data.sampler import Batch, DistributedBatchSampler, evaluation_shards
from kfp_pytorch.training.errors import ConfigError
from kfp_pytorch.training.faults.nonfinite_steps import open_guard
from kfp_pytorch.training.faults.stopping import StopAgreement
from kfp_pytorch.training.image import models
from kfp_pytorch.training.image.export import write_export
from kfp_pytorch.training.learning_rate import learning_rate, peak_rate
from kfp_pytorch.training.parallel import compute_options
from kfp_pytorch.training.parallel.compute_options import ComputeOptions
from kfp_pytorch.training.parallel.process_group import share_buffers
from kfp_pytorch.training.telemetry.curves import History
from kfp_pytorch.training.telemetry.flops import image_flops
from kfp_pytorch.training.telemetry.metrics import Evaluation, LossMeter, Progress
from kfp_pytorch.training.telemetry.reports import Telemetry
from kfp_pytorch.training.telemetry.step_measurements import StepMeasurements

LOG = logging.getLogger("kfp_pytorch.training")
# The curves that the termination message has room for.
CURVES = ("train_loss", "loss", "accuracy")
# The results by which TensorBoard compares jobs.
RESULTS = ("accuracy", "loss")
_SHOWN_IMAGES = 16
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Job(lifecycle.Job):
    """What this loop works with."""

    data: ImageData  # the data set
    loader: DeviceLoader  # brings its batches to the device
    compute: ComputeOptions  # how steps compute
    replica: nn.Module  # the model, wrapped so that gradients are averaged over ranks
    sampler: DistributedBatchSampler  # this rank's batches

    @property
    def is_over(self) -> bool:
        """Whether training is done."""
        return self.state.progress.epoch >= self.config.epochs

    @property
    def epoch_is_over(self) -> bool:
        """Whether no step of the current epoch is left."""
        return self.state.progress.samples >= self.sampler.samples

    def batch_of(self, step: int, rank: int) -> str:
        """A description of what a rank computed in a recent step of this epoch."""
        progress, sampler = self.state.progress, self.sampler
        done = sum(1 for batch in sampler.of_rank(rank) if batch.start < progress.samples)
        index = done - 1 - (progress.step - step)
        batch = next(itertools.islice(sampler.of_rank(rank), index, None))
        number = batch.start // (sampler.batch_size * sampler.world_size)
        return (
            f"epoch {progress.epoch}, batch {number}, rank {rank}, samples "
            f"{batch.indices[: batch.count][:8].tolist()} and on"
        )


def train(start: lifecycle.Start) -> dict[str, Any]:
    """Trains, evaluates and exports a model. Returns the result, on all ranks."""
    job = set_up(start)
    with job.telemetry, closing(job.loader), closing(job.checkpoints), closing(job.measurements):
        _report_arguments(job)
        evaluation: dict[str, float] = {}
        while not job.is_over:
            _train_epoch(job)
            evaluation = evaluate(job)
            _finish_epoch(job, evaluation)
        return finish(job, evaluation or evaluate(job))


def set_up(start: lifecycle.Start) -> Job:
    """Loads data, model and the newest checkpoint."""
    config, world = start.config, start.world
    folder = lifecycle.open_output(config, world)
    images = datasets.load(config, world)
    compute = compute_options.choose(config, world.device)
    # Equal weights on all ranks, then different dropout on each.
    torch.manual_seed(config.seed)
    model = models.build(config.model, images.spec, config.image_size)
    _check_batch(config, images, model)
    compute.place(model)
    torch.manual_seed(config.seed * 1_000_003 + world.rank)
    optimizer = _make_optimizer(config, model, compute.fused)
    state = State(model, optimizer, LossMeter(world), Progress(), History())
    # With other images or classes the order of samples, or an answer, would mean something else.
    samples, classes = len(images.train.labels), images.spec.classes
    identity: dict[str, int | str] = {"train_samples": samples, "classes": len(classes)}
    identity["class_names"] = datasets.names_in_short(classes)
    checkpoints = Checkpoints(folder, config, world, state, identity)
    checkpoints.resume()
    start.emergency.arm(world, lambda: job_state.position(state), checkpoints.save_alone)
    return Job(
        config=config,
        world=world,
        folder=folder,
        data=images,
        loader=device_loader.open_device_loader(config, world, images),
        compute=compute,
        state=state,
        replica=compute_options.replicate(
            model, world, compute, config.batch_size // config.accumulate
        ),
        sampler=DistributedBatchSampler(
            samples, world.rank, world.size, config.batch_size, config.seed, images.block
        ),
        stop=StopAgreement(world, start.request),
        telemetry=Telemetry(config, world, folder, state.history, state.progress),
        measurements=StepMeasurements(
            *(config, world, folder, model),
            lambda: image_flops(model, images.spec.shape),
            start.heartbeat,
        ),
        guard=open_guard(world, model, optimizer, config.skip_bad_steps),
        checkpoints=checkpoints,
        emergency=start.emergency,
    )


def _make_optimizer(config: Config, model: nn.Module, fused: bool) -> torch.optim.Optimizer:
    # None leaves the choice to torch.
    options: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "fused": fused or None,
    }
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), **options)
    nesterov = config.momentum > 0
    return torch.optim.SGD(
        model.parameters(), momentum=config.momentum, nesterov=nesterov, **options
    )


def _check_batch(config: Config, images: ImageData, model: models.Classifier) -> None:
    """Refuses batches of one image for a model whose batch norm cannot train on them.

    Larger batches have no part of one image: `Config` checks those of `--accumulate`, the sampler
    the last one of an epoch.
    """
    samples = len(images.train.labels)
    if min(config.batch_size, samples) > 1:
        return
    layer = models.norm_of_one_value(model, images.spec)
    if layer:
        size = config.image_size or "x".join(map(str, images.spec.shape[1:]))
        raise ConfigError(
            f"--batch-size is {config.batch_size}, of {samples} samples to train on, and --model "
            f"{config.model} cannot train on one image at a time: of images of size {size} one "
            f"pixel is left at layer {layer}, where batch norm needs 2 values of a channel; give "
            "2 images or more, as with --batch-size 2, or larger ones, such as --image-size 64"
        )


def _report_arguments(job: Job) -> None:
    config, world, train_split = job.config, job.world, job.data.train
    values = {
        **asdict(config),
        "world_size": world.size,
        "global_batch": config.batch_size * world.size,
        "learning_rate": peak_rate(config, world.size),
        "train_samples": len(train_split.labels),
        "held_out_samples": len(job.data.held_out.labels),
        "parameters": sum(weight.numel() for weight in job.state.model.parameters()),
    }
    job.telemetry.describe("run", values, RESULTS)
    shown = train_split.take(torch.arange(min(_SHOWN_IMAGES, len(train_split.labels))), _CPU)
    step, limits = job.state.progress.step, job.data.spec.values
    job.telemetry.images("train_images", step, shown.images, limits)
    if config.label_smoothing and world.is_main:
        LOG.info(
            "train_loss is of smoothed labels (--label-smoothing %g), loss is not: train_loss "
            "stays above it",
            config.label_smoothing,
        )
    LOG.info("training on %s as rank %s of %s", world.device, world.rank, world.size)


def _train_epoch(job: Job) -> None:
    progress = job.state.progress
    job.replica.train()
    job.sampler.set_epoch(progress.epoch, progress.samples)
    clock, seen = time.perf_counter(), 0
    job.measurements.start(progress.step + 1)
    for batch, samples in job.loader.train(progress.epoch, job.sampler):
        if job.stop.reached():
            lifecycle.save_and_stop(job)
        job.measurements.before_step(progress.step + 1)
        rate = train_step(job, batch, samples)
        job.measurements.after_step(progress.step)
        seen += batch.global_size
        if progress.step % job.config.log_every == 0:
            seconds, clock = time.perf_counter() - clock, time.perf_counter()
            lifecycle.report_training(job, {"lr": rate, "samples_per_second": seen / seconds})
            seen = 0
        lifecycle.save_if_due(job)
    lifecycle.check_finite(job)
    job.measurements.idle()


def train_step(job: Job, batch: Batch, samples: Split) -> float:
    """Takes one step of the optimizer, and returns its learning rate."""
    progress, optimizer = job.state.progress, job.state.optimizer
    epochs_done = progress.epoch + progress.samples / job.sampler.samples
    rate = learning_rate(job.config, job.world.size, epochs_done)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss = backward(job, samples, batch)
    job.measurements.after_backward()
    with job.emergency.step():
        job.guard.step(progress.step + 1, loss)
        progress.step += 1
        progress.samples += batch.global_size
        job.state.meter.add(loss, batch.count)
    return rate


def backward(job: Job, samples: Split, batch: Batch) -> Tensor:
    """Computes a batch's gradients, averaged over ranks; returns its loss, on the device."""
    # DDP averages over ranks whatever their number of samples: so each is weighted by it.
    weight = batch.count * job.world.size / batch.global_size
    # Batch norm cannot train on a part of one sample, as the last batch of an epoch could give.
    parts = max(1, min(job.config.accumulate, len(samples.labels) // 2))
    total = torch.zeros((), device=job.world.device)
    for number, (images, labels) in enumerate(split_evenly(counted(samples, batch), parts)):
        with compute_options.exchange(job.replica, wanted=number == parts - 1):
            with job.compute.autocast():
                logits = job.replica(images)
                # A sum, as the mean over no label is not a number.
                summed = functional.cross_entropy(
                    logits, labels, label_smoothing=job.config.label_smoothing, reduction="sum"
                )
            loss = summed / max(1, batch.count)
            (loss * weight).backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def counted(samples: Split, batch: Batch) -> Split:
    """A batch's samples, where the labels of those that do not count are left out of the loss."""
    if batch.count == len(samples.labels):
        return samples
    positions = torch.arange(len(samples.labels), device=samples.labels.device)
    return Split(samples.images, samples.labels.where(positions < batch.count, LEFT_OUT))


@torch.no_grad()
def evaluate(job: Job) -> dict[str, float]:
    """Loss and accuracy on the held-out samples, each counted once over all ranks, by their names.

    Raises DivergedError: if the loss is not finite. Raises Stopped: if all ranks agreed to stop.
    """
    world, model, progress = job.world, job.state.model, job.state.progress
    share_buffers(world, model)
    model.eval()
    classes, samples = job.data.spec.classes, len(job.data.held_out.labels)
    evaluation = Evaluation(world, len(classes))
    shards = evaluation_shards(samples, world.rank, world.size, job.config.batch_size)
    for number, (images, labels) in enumerate(job.loader.held_out(shards), 1):
        if job.stop.reached():
            lifecycle.save_and_stop(job)
        if len(labels):
            with job.compute.autocast():
                logits = model(images)
            evaluation.add(logits, labels)
        job.measurements.evaluating(progress.step, number)
    result = evaluation.result()
    job.measurements.idle()
    if not all(map(math.isfinite, result.values())):
        raise lifecycle.diverged(
            job,
            f"the loss on held-out samples is {result['loss']} after step "
            f"{progress.step}; try a lower --lr than {job.config.lr}",
        )
    job.telemetry.confusion(progress.step, evaluation.confusion(), classes)
    return result


def _finish_epoch(job: Job, evaluation: dict[str, float]) -> None:
    """Reports the epoch, saves where a checkpoint is due, and stops if requested."""
    progress = job.state.progress
    if progress.epoch + 1 == job.config.epochs:
        lifecycle.report_training(job, {})
    progress.epoch, progress.samples = progress.epoch + 1, 0
    lifecycle.close_epoch(job, evaluation)


def finish(job: Job, evaluation: dict[str, float]) -> dict[str, Any]:
    """Writes metrics and the export, and returns the result."""
    job.stop.settle()
    job.checkpoints.wait()
    model = job.state.model.eval().to("cpu").to(memory_format=torch.contiguous_format)
    return lifecycle.conclude(
        *(job, evaluation, CURVES),
        lambda: write_export(
            job.folder, model, job.data.spec, job.data.held_out, job.config.triton_name
        ),
    )
