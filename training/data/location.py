"""The location of a data set, checked before the seconds that torch takes to import."""

from __future__ import annotations

from pathlib import Path

from kfp_pytorch.training.arguments.config import Config
from kfp_pytorch.training.errors import ConfigError, DataError
from kfp_pytorch.training.storage.job_folder import open_folder

_IN_FILES = ("imagefolder", "shards")
# Schemes for which `open_folder` says what to write instead.
_OTHER_SCHEMES = ("minio", "pvc")
# Below its root; torchvision looks there.
_FASHION_MNIST_FILES = Path("FashionMNIST", "raw")


def fashion_mnist_root(config: Config) -> Path:
    """The folder above `FashionMNIST`."""
    return Path(config.data_dir or Path.home() / ".cache" / "kfp-pytorch")


def data_location(config: Config) -> str:
    """The path or URI of a data set in files. Raises ConfigError: if --data-dir is missing."""
    if not config.data_dir:
        raise ConfigError(
            f"the data set {config.dataset} needs a location: give its path or URI with --data-dir"
        )
    return config.data_dir


def unreadable_fashion_mnist(config: Config, reason: str) -> DataError:
    """The error of files that are missing or damaged."""
    where = fashion_mnist_root(config) / _FASHION_MNIST_FILES
    return DataError(
        f"fashion-mnist cannot be read from {where}: {reason}; put its four files there unpacked, "
        "give the folder above FashionMNIST with --data-dir, or pass --download"
    )


def check_data(config: Config) -> None:
    """Checks that the folder of a data set exists; its content is checked when it is read.

    Raises ConfigError: if --data-dir is missing, or a file of --text-files. Raises DataError: if a
    local folder does not exist. Raises StorageError: if the URI has a scheme that cannot be read.
    """
    for name in config.text_files:
        if not Path(name).exists():
            raise ConfigError(
                f"--text-files has {name!r}, and there is no such file or folder; name what is "
                "there, or none for the sources of Python"
            )
    if config.dataset in _IN_FILES:
        location = data_location(config)
        scheme, separator, rest = location.partition("://")
        if separator and not rest.strip("/"):
            raise ConfigError(f"--data-dir is {location!r}, which names no place in a store")
        if scheme in _OTHER_SCHEMES:
            open_folder(location)
        local = not separator or scheme == "file"
        if local and not Path(rest if separator else location).is_dir():
            raise DataError(f"--data-dir is {location!r}, and there is no such folder")
    elif config.dataset == "fashion-mnist" and not config.download:
        files = fashion_mnist_root(config) / _FASHION_MNIST_FILES
        if not files.is_dir():
            raise unreadable_fashion_mnist(config, "there is no such folder")
