"""Data sets by name, and the parts that all of them have."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from kfp_pytorch.training.arguments.config import DATASETS, Config
from kfp_pytorch.training.data import location
from kfp_pytorch.training.errors import DataError
from kfp_pytorch.training.parallel.process_group import World, once_per_node

HELD_OUT_SHARE = 0.2
# The split is part of the data set, so it does not change with --seed.
_SPLIT_SEED = 20_231
# Characters of class names that a checkpoint keeps in full.
_LONGEST_NAMES = 500


@dataclass(frozen=True)
class ImageSpec:
    """The properties of the images of a data set."""

    shape: tuple[int, int, int]  # channels, height and width
    classes: tuple[str, ...]  # the name of each class
    mean: tuple[float, ...]  # the mean of each channel, in the data set's own values
    std: tuple[float, ...]  # the standard deviation of each channel, in the same values
    values: tuple[float, float]  # the smallest and the largest value that occurs
    any_size: bool = False  # whether images to predict have any size, and are cropped and resized


class Samples(Protocol):
    """Labelled images: in memory, or in files that are decoded when needed."""

    @property
    def labels(self) -> Tensor:
        """The class of each sample, on the CPU."""

    def some(self, count: int) -> Samples:
        """At most so many of these samples, always the same, of all classes."""

    def take(self, indices: Tensor, device: torch.device) -> Split:
        """The samples of these indices, on a device, as they are evaluated."""


def split_evenly(samples: Split, parts: int) -> list[Split]:
    """Samples in parts whose sizes differ by at most one."""
    images, labels = samples.images.tensor_split(parts), samples.labels.tensor_split(parts)
    return [Split(*each) for each in zip(images, labels, strict=True)]


class Split(NamedTuple):
    """Samples in memory: images of shape [samples, channels, height, width], and their classes."""

    images: Tensor
    labels: Tensor

    def some(self, count: int) -> Split:
        """See `Samples.some`: the first, as they are not ordered by class."""
        return Split(self.images[:count], self.labels[:count])

    def take(self, indices: Tensor, device: torch.device) -> Split:
        """See `Samples.take`."""
        here = indices.to(self.images.device, non_blocking=True)
        return Split(self.images[here].to(device), self.labels[here].to(device))


@dataclass(frozen=True)
class ImageData:
    """A data set."""

    spec: ImageSpec  # the properties of its images
    train: Samples  # the samples to train on
    held_out: Samples  # the samples to evaluate on; never trained on
    block: int = 1  # how many neighbours are read together; see `DistributedBatchSampler`


def names_in_short(classes: Sequence[str]) -> str:
    """The names of all classes; if they are long, their beginning and a digest."""
    text = ", ".join(classes)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text if len(text) <= _LONGEST_NAMES else f"{text[:_LONGEST_NAMES]}… ({digest[:16]})"


def load(config: Config, world: World) -> ImageData:
    """Loads the data set that a run trains on; of one in files, only their list.

    A download happens once on each node. Raises ConfigError: if --data-dir is missing. Raises
    DataError: if it cannot be read, or has fewer samples than there are ranks.
    """
    if config.dataset == "fashion-mnist":
        once_per_node(world, lambda: _find_fashion_mnist(config))
    data = LOADERS[config.dataset](config, world)
    if config.max_train_samples:
        data = replace(data, train=data.train.some(config.max_train_samples))
    if not len(data.held_out.labels):
        raise DataError(
            f"the data set {config.dataset} has no held-out samples to evaluate on: no class has "
            "enough for a fifth of it; give more, or a part of their own (val/ or val-….tar)"
        )
    if len(data.spec.classes) < 2:
        raise DataError(
            f"the data set {config.dataset} has one class alone, {data.spec.classes[0]!r}, and "
            "there is nothing to learn; see that --data-dir is the folder right above the classes"
        )
    if len(data.train.labels) < world.size:
        raise DataError(
            f"the data set {config.dataset} has {len(data.train.labels)} samples to train on, "
            f"fewer than the {world.size} processes; start fewer processes"
        )
    return data


def _digits(_config: Config, _world: World) -> ImageData:
    """The 1,797 digits of 8 x 8 pixels, from 0 to 16, that come with scikit-learn.

    It reads the file that `sklearn.datasets.load_digits` reads: that function's imports take
    longer than the training of an epoch.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError("the data set digits needs scikit-learn: install kfp-pytorch[training]")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    every = Split(
        torch.from_numpy(table[:, :-1].copy()).view(-1, 1, 8, 8),
        torch.from_numpy(table[:, -1].astype(np.int64)),
    )
    train, held_out = _stratified_split(every, HELD_OUT_SHARE)
    return _described(train, held_out, tuple(str(digit) for digit in range(10)))


def _fashion_mnist(config: Config, _world: World) -> ImageData:
    """Zalando's 60,000 and 10,000 images of clothes, 28 x 28 pixels from 0 to 255."""
    train, held_out = (_read_fashion_mnist(config, train=train) for train in (True, False))
    splits = [Split(part.data.unsqueeze(1), part.targets) for part in (train, held_out)]
    return _described(splits[0], splits[1], tuple(train.classes))


def _imagefolder(config: Config, world: World) -> ImageData:
    from kfp_pytorch.training.data import encoded_images, image_folder

    return encoded_images.as_data(
        image_folder.find(location.data_location(config), world), config.image_size
    )


def _shards(config: Config, world: World) -> ImageData:
    from kfp_pytorch.training.data import encoded_images, webdataset

    found = webdataset.find(location.data_location(config), world, config.shuffle_block)
    return encoded_images.as_data(found, config.image_size)


def _synthetic(config: Config, _world: World) -> ImageData:
    from kfp_pytorch.training.data import synthetic

    return synthetic.make(config)


LOADERS: dict[str, Callable[[Config, World], ImageData]] = {
    "digits": _digits,
    "fashion-mnist": _fashion_mnist,
    "imagefolder": _imagefolder,
    "shards": _shards,
    "synthetic": _synthetic,
}
assert set(LOADERS) == set(DATASETS)  # noqa: S101 - two lists of one thing


def _stratified_split(every: Split, share: float) -> tuple[Split, Split]:
    held_out = held_out_mask(every.labels, share)
    return (
        Split(every.images[~held_out], every.labels[~held_out]),
        Split(every.images[held_out], every.labels[held_out]),
    )


def held_out_mask(labels: Tensor, share: float) -> Tensor:
    """Chooses the samples to hold out: the same share of each class, the same each time."""
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        held_out[members[: round(len(members) * share)]] = True
    return held_out


def _find_fashion_mnist(config: Config) -> None:
    """Checks that the files can be read; downloads them if --download is given."""
    try:
        for train in (True, False):
            _read_fashion_mnist(config, train=train, download=config.download)
    except Exception as error:
        # For damaged files torchvision raises any kind of error.
        reason = f"{type(error).__name__} {error}"
        raise location.unreadable_fashion_mnist(config, reason) from error


def _read_fashion_mnist(config: Config, train: bool, download: bool = False):  # type: ignore[no-untyped-def]
    # torchvision takes seconds to import, and digits do not need it.
    from torchvision.datasets import FashionMNIST

    return FashionMNIST(str(location.fashion_mnist_root(config)), train=train, download=download)


def _described(train: Split, held_out: Split, classes: tuple[str, ...]) -> ImageData:
    values = train.images.float()
    spec = ImageSpec(
        shape=(train.images.shape[1], train.images.shape[2], train.images.shape[3]),
        classes=classes,
        mean=tuple(values.mean(dim=(0, 2, 3)).tolist()),
        std=tuple(values.std(dim=(0, 2, 3)).tolist()),
        values=(values.min().item(), values.max().item()),
    )
    return ImageData(spec, train, held_out)
