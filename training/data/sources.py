"""Files of a data set: in a local folder, a mounted volume, or an object store."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol

import torch
from torch import Tensor

from kfp_pytorch.training.errors import DataError, DataUnavailableError
from kfp_pytorch.training.storage import outages

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".jfif", ".jpe")
# A file that is larger holds no single image, or none that a worker has memory for.
MOST_IMAGE_BYTES = 2**28
# Concurrent requests of one process to an object store.
_AT_A_TIME = 64
# Folders of macOS archives and of file systems.
_NO_DATA = ("__MACOSX", "lost+found")


class Source(Protocol):
    """Encoded images by number; pickled for worker processes."""

    def read(self, indices: Sequence[int]) -> list[bytes]:
        """The files of these images. Raises DataError: if one cannot be read; it is named."""

    def name(self, index: int) -> str:
        """The path or URI of an image, for messages."""


class NameTable:
    """Many names as two tensors, of which worker processes share one copy."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode(errors="surrogateescape") for name in names]
        self._text = torch.frombuffer(bytearray(b"".join(encoded) or b"\0"), dtype=torch.uint8)
        sizes = torch.tensor([0, *map(len, encoded)], dtype=torch.int64)
        self._ends: Tensor = sizes.cumsum(0)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        start, end = self._ends[index : index + 2].tolist()
        return self._text[start:end].numpy().tobytes().decode(errors="surrogateescape")


class Files:
    """The files below a path or URI."""

    def __init__(self, uri: str, option: str = "--data-dir") -> None:
        self._option = option
        scheme, separator, rest = uri.partition("://")
        self.uri = rest if scheme == "file" else uri.rstrip("/")
        self.local = not separator or scheme == "file"

    def sizes(self) -> dict[str, int]:
        """The size in bytes of each file below here, by its path relative to here, sorted.

        Hidden files, such as those of editors, are left out. Raises DataError: it cannot be read.
        """
        try:
            found = self._local_sizes() if self.local else self._remote_sizes()
        except Exception as error:
            # Each object store's client has its own error classes.
            raise self.failed("list", "", error) from error
        return dict(sorted(found.items()))

    def read(self, ranges: Sequence[tuple[str, int, int | None]]) -> list[bytes]:
        """Parts of files: name, first byte, and the byte after the last; None for the end.

        Raises DataError: if one cannot be read; it is named.
        """
        if self.local:
            return [self._read_local(*each) for each in ranges]
        names, starts, ends = zip(*ranges, strict=True)
        files, root = self._open_remote()
        found = files.cat_ranges(
            [f"{root}/{name}" for name in names],
            list(starts),
            list(ends),
            on_error="return",
            **({"batch_size": _AT_A_TIME} if files.async_impl else {}),
        )
        for name, content in zip(names, found, strict=True):
            if isinstance(content, Exception):
                raise self.failed("read", name, content) from content
        return list(found)

    def read_whole(self, name: str, size: int, most: int) -> bytes:
        """A description of the data set, such as an index.

        `size`: its size in bytes, by `sizes`. Raises DataError: if it cannot be read, or is larger.
        """
        if size > most:
            raise DataError(
                f"{self.at(name)} has {size} bytes, and at most {most} are read into this "
                "container's memory; see that it is what its name says, or give the pod more memory"
            )
        return self.read([(name, 0, size)])[0]

    def open(self, name: str) -> IO[bytes]:
        """Opens a file that is read from its start to its end. Raises DataError."""
        try:
            if self.local:
                return (Path(self.uri) / name).open("rb")
            files, root = self._open_remote()
            stream: IO[bytes] = files.open(f"{root}/{name}", "rb", cache_type="readahead")
            return stream
        except Exception as error:
            raise self.failed("read", name, error) from error

    def at(self, name: str) -> str:
        """The path or URI of a file, for messages."""
        return f"{self.uri}/{name}"

    def _open_remote(self) -> tuple[Any, str]:
        import fsspec

        files, root = fsspec.core.url_to_fs(self.uri)
        return files, root.rstrip("/")

    def _local_sizes(self) -> dict[str, int]:
        root, found = Path(self.uri), {}
        if not root.is_dir():
            raise FileNotFoundError("there is no such folder")
        for folder, folders, names in os.walk(root, onerror=_raise, followlinks=True):
            folders[:] = filter(is_data, folders)
            relative = os.path.relpath(folder, root)
            prefix = "" if relative == "." else f"{relative}/"
            for name in filter(is_data, names):
                about = os.stat(f"{folder}/{name}")  # noqa: PTH116
                # Reading from a pipe or a socket would block.
                if stat.S_ISREG(about.st_mode):
                    found[prefix + name] = about.st_size
        return found

    def _remote_sizes(self) -> dict[str, int]:
        files, root = self._open_remote()
        found = files.find(root, detail=True)
        if not found:
            raise FileNotFoundError("there is nothing")
        sizes = {path[len(root) + 1 :]: int(about["size"]) for path, about in found.items()}
        return {name: size for name, size in sizes.items() if all(map(is_data, name.split("/")))}

    def _read_local(self, name: str, start: int, end: int | None) -> bytes:
        try:
            with open(f"{self.uri}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                if start:
                    file.seek(start)
                return file.read() if end is None else file.read(end - start)
        except OSError as error:
            raise self.failed("read", name, error) from error

    def failed(self, action: str, name: str, error: Exception) -> DataError:
        """The error of a file that cannot be read, or, without a name, of the whole folder."""
        reason = getattr(error, "strerror", None) or error
        # For a whole folder, the file that failed.
        where = self.at(name) if name else getattr(error, "filename", None) or self.uri
        words = f"cannot {action} {where}: {reason};"
        hint = f"see that {self._option} is the place of the data, and that this user may read it"
        if outages.is_outage(error):
            return DataUnavailableError(f"{words} {outages.UNAVAILABLE} {hint}")
        return DataError(f"{words} {hint}")


def is_data(name: str) -> bool:
    """Whether a file or folder of this name is data."""
    return not name.startswith(".") and name not in _NO_DATA


def _raise(error: OSError) -> NoReturn:
    raise error
