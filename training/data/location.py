"""Where a data set has to lie: looked at before the seconds that torch takes to import."""

from __future__ import annotations

from pathlib import Path

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.errors import ConfigError, DataError
from kfp_pytorch.training.storage.job_folder import open_folder

_IN_FILES = ("imagefolder", "shards")
# Schemes of which `open_folder` says how to write the place instead.
_WRITTEN_OTHERWISE = ("minio", "pvc")
# Below its root; torchvision looks there.
_FASHION_MNIST_FILES = Path("FashionMNIST", "raw")


def fashion_mnist_root(config: Config) -> Path:
    """The folder above `FashionMNIST`."""
    return Path(config.data_dir or Path.home() / ".cache" / "kfp-pytorch")


def named_place(config: Config) -> str:
    """Where a data set in files lies, as it was told.

    Raises:
        ConfigError: If nobody said so.
    """
    if not config.data_dir:
        raise ConfigError(
            f"the data set {config.dataset} lies somewhere: give its path or URI with --data-dir"
        )
    return config.data_dir


def unreadable_fashion_mnist(config: Config, reason: str) -> DataError:
    """The error of files that are not there, or not as they should be."""
    where = fashion_mnist_root(config) / _FASHION_MNIST_FILES
    return DataError(
        f"fashion-mnist cannot be read from {where}: {reason}; put its four files there unpacked, "
        "give the folder above FashionMNIST with --data-dir, or pass --download"
    )


def check_data(config: Config) -> None:
    """Finds out whether the folder of a data set is there; what is in it, only reading tells.

    Args:
        config: Which data set, and where it lies.

    Raises:
        ConfigError: If a data set that lies somewhere has no place.
        DataError: If its folder of this machine is not there.
        StorageError: If it is named by a URI that nothing here can read.
    """
    for name in config.text_files:
        if not Path(name).exists():
            raise ConfigError(
                f"--text-files has {name!r}, and there is no such file or folder; name what is "
                "there, or none for the sources of Python"
            )
    if config.dataset in _IN_FILES:
        place = named_place(config)
        scheme, separator, rest = place.partition("://")
        if separator and not rest.strip("/"):
            raise ConfigError(f"--data-dir is {place!r}, which names no place in a store")
        if scheme in _WRITTEN_OTHERWISE:
            open_folder(place)
        local = not separator or scheme == "file"
        if local and not Path(rest if separator else place).is_dir():
            raise DataError(f"--data-dir is {place!r}, and there is no such folder")
    elif config.dataset == "fashion-mnist" and not config.download:
        files = fashion_mnist_root(config) / _FASHION_MNIST_FILES
        if not files.is_dir():
            raise unreadable_fashion_mnist(config, "there is no such folder")
