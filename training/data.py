"""Data sets: real images in memory, in their own values."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kfp_pytorch.training.config import DATASETS, Config
from kfp_pytorch.training.distributed import World, once_a_node
from kfp_pytorch.training.errors import DataError

HELD_OUT_SHARE = 0.2
# The split is part of the data set, so it does not change with --seed.
_SPLIT_SEED = 20_231


@dataclass(frozen=True)
class ImageSpec:
    """What the images of a data set look like.

    Attributes:
        shape: Channels, height and width.
        classes: The name of each class.
        mean: The mean of each channel, in the data set's own values.
        std: The standard deviation of each channel, in the same values.
        values: The smallest and the largest value that occurs.
    """

    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    values: tuple[float, float]


class Split(NamedTuple):
    """Images, of shape [samples, channels, height, width], and the class of each."""

    images: Tensor
    labels: Tensor

    def take(self, indices: Tensor, device: torch.device) -> Split:
        """The samples of these indices, on a device."""
        return Split(self.images[indices].to(device), self.labels[indices].to(device))


@dataclass(frozen=True)
class ImageData:
    """A data set.

    Attributes:
        spec: What its images look like.
        train: What a model is trained on.
        held_out: What it is judged by; no sample of it is ever trained on.
    """

    spec: ImageSpec
    train: Split
    held_out: Split


def load(config: Config, world: World) -> ImageData:
    """Loads the data set that a run trains on.

    Args:
        config: Which one, where it lies and how much of it to train on.
        world: The ranks; a download happens once on each node.

    Returns:
        The data set, on the CPU.

    Raises:
        DataError: If it is not there, or has fewer samples than there are ranks.
    """
    if config.dataset == "fashion-mnist":
        once_a_node(world, lambda: _find_fashion_mnist(config))
    data = LOADERS[config.dataset](config)
    if config.max_train_samples:
        data = ImageData(data.spec, _first(data.train, config.max_train_samples), data.held_out)
    if len(data.train.labels) < world.size:
        raise DataError(
            f"the data set {config.dataset} has {len(data.train.labels)} samples to train on, "
            f"fewer than the {world.size} processes; start fewer processes"
        )
    return data


def _digits(_config: Config) -> ImageData:
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
    train, held_out = stratified_split(every, HELD_OUT_SHARE)
    return _described(train, held_out, tuple(str(digit) for digit in range(10)))


def _fashion_mnist(config: Config) -> ImageData:
    """Zalando's 60,000 and 10,000 images of clothes, 28 x 28 pixels from 0 to 255."""
    train, held_out = (_read_fashion_mnist(config, train=train) for train in (True, False))
    splits = [Split(part.data.unsqueeze(1), part.targets) for part in (train, held_out)]
    return _described(splits[0], splits[1], tuple(train.classes))


LOADERS: dict[str, Callable[[Config], ImageData]] = {
    "digits": _digits,
    "fashion-mnist": _fashion_mnist,
}
assert set(LOADERS) == set(DATASETS)  # noqa: S101 - two lists of one thing


def stratified_split(every: Split, share: float) -> tuple[Split, Split]:
    """Splits a data set so that each class has the same share in both parts.

    Args:
        every: All samples.
        share: The part of each class to hold out, between 0 and 1.

    Returns:
        What to train on, and what is held out. The same input always gives the same split.
    """
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    held_out = torch.zeros(len(every.labels), dtype=torch.bool)
    for label in sorted(set(every.labels.tolist())):
        members = (every.labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        held_out[members[: round(len(members) * share)]] = True
    return (
        Split(every.images[~held_out], every.labels[~held_out]),
        Split(every.images[held_out], every.labels[held_out]),
    )


def _find_fashion_mnist(config: Config) -> None:
    """Makes sure that the files are there, by a download if that was asked for."""
    try:
        for train in (True, False):
            _read_fashion_mnist(config, train=train, download=config.download)
    except Exception as error:
        # torchvision meets damaged files with whatever its parsing stumbles over.
        where = _data_dir(config) / "FashionMNIST" / "raw"
        raise DataError(
            f"fashion-mnist cannot be read from {where}: {type(error).__name__} {error}; put its "
            "four files there unpacked, give the folder above FashionMNIST with --data-dir, or "
            "pass --download"
        ) from error


def _read_fashion_mnist(config: Config, train: bool, download: bool = False):  # type: ignore[no-untyped-def]
    # torchvision takes seconds to import, and digits do not need it.
    from torchvision.datasets import FashionMNIST

    return FashionMNIST(str(_data_dir(config)), train=train, download=download)


def _data_dir(config: Config) -> Path:
    return Path(config.data_dir or Path.home() / ".cache" / "kfp-pytorch")


def _first(split: Split, count: int) -> Split:
    return Split(split.images[:count], split.labels[:count])


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
