"""Brings batches of any data set to the device before the step needs them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.data import decode, loader
from kfp_pytorch.training.data.datasets import ImageData, Samples, Split
from kfp_pytorch.training.data.encoded_images import EncodedSplit
from kfp_pytorch.training.data.loader import PIECE, Piece, Request
from kfp_pytorch.training.data.sampler import Batch
from kfp_pytorch.training.errors import ConfigError, DataError
from kfp_pytorch.training.parallel.process_group import World

LOG = logging.getLogger("kfp_pytorch.training")
# A data set in memory of at most so many bytes is copied to the GPU once.
_RESIDENT = 2**30
# With fewer workers per GPU its own decoder is faster: on an H100 a worker decodes some 400 images
# a second, and training with the GPU's decoder gets 3,719; see benchmarks/README.md.
_CPU_IS_ENOUGH = 9


class MemoryLoader:
    """Samples that are in memory, or made on the device."""

    def __init__(self, device: torch.device, train: Samples, held_out: Samples) -> None:
        self._device = device
        self._train, self._held_out = (_resident(each, device) for each in (train, held_out))

    def train(self, epoch: int, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Split]]:  # noqa: ARG002
        """Yields batches to train on, each with its samples on the device."""
        for batch in batches:
            yield batch, self._train.take(batch.indices, self._device)

    def held_out(self, batches: Sequence[Tensor]) -> Iterator[Split]:
        """Yields held-out samples on the device, batch by batch; one may be empty."""
        for indices in batches:
            yield self._held_out.take(indices, self._device)

    def close(self) -> None:
        """Ends nothing: there are no workers."""


class FileLoader:
    """Samples that workers read from files, and workers or the GPU decode."""

    def __init__(
        self, config: Config, world: World, train: EncodedSplit, held_out: EncodedSplit
    ) -> None:
        self._device = world.device
        self._splits = {True: train, False: held_out}
        self._seed = config.seed
        self._most_corrupt = config.skip_corrupt
        self._corrupt: set[tuple[bool, int]] = set()
        self._by_gpu = _decodes_on_gpu(config, world.device)
        cuda = world.device.type == "cuda"
        self._copies = torch.cuda.Stream(world.device) if cuda else None  # type: ignore[no-untyped-call]
        pieces = loader.Pieces(train, held_out, config.seed, raw=self._by_gpu)
        # The GPU's decoder reads files from the CPU, pinned or not.
        self._workers = loader.Workers(pieces, config, pin=cuda and not self._by_gpu)

    def train(self, epoch: int, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Split]]:
        """See `MemoryLoader.train`."""
        ahead, here = itertools.tee(batches)
        splits = self._split_batches(True, epoch, (batch.indices for batch in ahead))
        return zip(here, splits, strict=True)

    def held_out(self, batches: Sequence[Tensor]) -> Iterator[Split]:
        """See `MemoryLoader.held_out`."""
        return self._split_batches(False, 0, batches)

    def close(self) -> None:
        """Ends the workers."""
        self._workers.close()

    def _split_batches(self, train: bool, epoch: int, batches: Iterable[Tensor]) -> Iterator[Split]:
        """Samples on the device, batch by batch."""
        ahead, here = itertools.tee(batches)
        made = self._workers.make(
            Request(train, epoch, part.tolist())
            for indices in ahead
            for part in torch.split(indices, PIECE)
            if len(part)
        )
        for indices in here:
            parts = list(itertools.islice(made, -(-len(indices) // PIECE)))
            yield self._on_device(Request(train, epoch, indices.tolist()), parts)
        # Ends the workers' epoch.
        next(made, None)

    def _on_device(self, request: Request, parts: list[Piece]) -> Split:
        """Copies or decodes on another stream than that of training."""
        with torch.cuda.stream(self._copies) if self._copies else nullcontext():
            images, failures = self._images(request, parts)
            labels = self._splits[request.train].labels[request.indices]
            for position, reason in failures:
                self._leave_out(request, position, reason)
                labels[position] = decode.LEFT_OUT
            if failures and not request.train:
                # A held-out batch may have any size.
                images, labels = images[(labels >= 0).to(images.device)], labels[labels >= 0]
            if self._copies is None:
                return Split(images, labels)
            labels = labels.pin_memory().to(self._device, non_blocking=True)
        main = torch.cuda.current_stream(self._device)
        main.wait_stream(self._copies)
        for tensor in (images, labels):
            tensor.record_stream(main)
        return Split(images, labels)

    def _images(self, request: Request, parts: list[Piece]) -> tuple[Tensor, list[tuple[int, str]]]:
        size = self._splits[request.train].size
        if self._by_gpu:
            files = [file for part in parts for file in torch.split(part.content, part.sizes)]
            return decode.on_gpu(files, loader.view_of(request, self._seed), size, self._device)
        failures = [
            (number * PIECE + place, reason)
            for number, part in enumerate(parts)
            for place, reason in part.failures
        ]
        if not parts:
            return torch.empty(0, 3, size, size, device=self._device), failures
        copies = [part.content.to(self._device, non_blocking=True) for part in parts]
        return torch.cat(copies) if len(copies) > 1 else copies[0], failures

    def _leave_out(self, request: Request, place: int, reason: str) -> None:
        """Leaves out an image that cannot be decoded, or stops if there are too many."""
        index = request.indices[place]
        name = self._splits[request.train].name(index)
        if (request.train, index) in self._corrupt:
            return
        self._corrupt.add((request.train, index))
        if len(self._corrupt) > self._most_corrupt:
            raise DataError(
                f"the image {name} cannot be decoded: {reason}; replace or delete it, or pass "
                f"--skip-corrupt N to leave out up to N images a process, now {self._most_corrupt}"
            )
        LOG.warning("left out the image %s, which cannot be decoded: %s", name, reason)


DeviceLoader = MemoryLoader | FileLoader


def open_device_loader(config: Config, world: World, data: ImageData) -> DeviceLoader:
    """Makes the loader of a data set, not started. Raises ConfigError: the GPU cannot decode."""
    train, held_out = data.train, data.held_out
    if isinstance(train, EncodedSplit) and isinstance(held_out, EncodedSplit):
        return FileLoader(config, world, train, held_out)
    return MemoryLoader(world.device, train, held_out)


def _decodes_on_gpu(config: Config, device: torch.device) -> bool:
    """Whether the GPU decodes; the choice is logged."""
    if config.decode == "cpu" or (config.decode == "auto" and device.type != "cuda"):
        return False
    able = decode.gpu_can_decode(device)
    if config.decode == "gpu":
        if not able:
            raise ConfigError(
                "--decode is gpu, and there is no GPU or torchvision cannot decode with it; "
                "use --decode auto or cpu"
            )
        return True
    workers = loader.worker_count(config)
    chosen = able and workers < _CPU_IS_ENOUGH
    where = "the GPU decodes" if chosen else "worker processes decode"
    LOG.info("%s: there are %s a GPU, and %s are enough", where, workers, _CPU_IS_ENOUGH)
    return chosen


def _resident(samples: Samples, device: torch.device) -> Samples:
    if device.type == "cpu" or not isinstance(samples, Split):
        return samples
    if samples.images.nbytes > _RESIDENT:
        return samples
    return Split(samples.images.to(device), samples.labels.to(device))
