"""Where a data set has to lie: looked at before the seconds that torch takes to import."""

from __future__ import annotations

from pathlib import Path

from kfp_pytorch.training.config import Config
from kfp_pytorch.training.errors import ConfigError, DataError

_IN_FILES = ("imagefolder", "shards")


def fashion_mnist_root(config: Config) -> Path:
    """The folder above `FashionMNIST`."""
    return Path(config.data_dir or Path.home() / ".cache" / "kfp-pytorch")


def check_data(config: Config) -> None:
    """Finds out whether the folder of a data set is there; what is in it, only reading tells.

    Args:
        config: Which data set, and where it lies.

    Raises:
        ConfigError: If a data set that lies somewhere has no place.
        DataError: If its folder of this machine is not there.
    """
    for name in config.text_files:
        if not Path(name).exists():
            raise ConfigError(
                f"--text-files has {name!r}, and there is no such file or folder; name what is "
                "there, or none for the sources of Python"
            )
    if config.dataset in _IN_FILES:
        if not config.data_dir:
            raise ConfigError(
                f"the data set {config.dataset} lies somewhere: give its path or URI with "
                "--data-dir"
            )
        scheme, separator, rest = config.data_dir.partition("://")
        if separator and not rest.strip("/"):
            raise ConfigError(f"--data-dir is {config.data_dir!r}, which names no place in a store")
        local = not separator or scheme == "file"
        if local and not Path(rest if separator else config.data_dir).is_dir():
            raise DataError(f"--data-dir is {config.data_dir!r}, and there is no such folder")
    elif config.dataset == "fashion-mnist" and not config.download:
        where = fashion_mnist_root(config) / "FashionMNIST" / "raw"
        if not where.is_dir():
            raise DataError(
                f"fashion-mnist cannot be read from {where}: there is no such folder; put its "
                "four files there unpacked, give the folder above FashionMNIST with --data-dir, "
                "or pass --download"
            )
